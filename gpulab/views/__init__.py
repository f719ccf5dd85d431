"""Views: functions that take results and return a displayable object; they display nothing themselves.

sheet           the content of a view, and its forms: text, HTML, Markdown
report          the report of a run
compare         two runs, or several in a row
whatif          predictions and the critical path
charts          matplotlib charts
timeline        the zoomable timeline
live            the live panel and the monitor
virtual_gpu     memory fit, largest batch and comparison of virtual GPUs
choices         multiple-choice questions of the course as buttons
info            the facts of a machine, and what can be measured on it
rule_page       the pages of rules and of what-if changes
perfetto        export of a run to Perfetto
front_end       which output the front end of a notebook can show
sensor_columns  sensor readings with format, axis and limit
"""
