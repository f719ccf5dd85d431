"""Sheet: the content of a view, and its forms: text, HTML, Markdown, and a displayable object.

sheet           the blocks a view is made of: claims, tables, bars, timelines
view            a sheet that displays itself and can be saved
text            a sheet as plain text
html            a sheet as HTML that survives JupyterLab's sanitizer
markdown        a sheet as Markdown
palette         the colours of the parts of a step
lanes           the lanes of a timeline: host threads and GPU streams
step_picture    a picture of a few steps, as SVG
"""
