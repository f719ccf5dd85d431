"""The documentation site: pages from docs/, from docstrings and parsers, and from the stored notebooks.

    python -m tools.site            build/site, with warnings as errors; then a check of every link
    python -m tools.site pages      only the Markdown pages, in build/pages

Sphinx with MyST and the theme furo builds it: all three are maintained, read the Markdown that GitHub shows, search
without a server, and load nothing from other hosts. (MkDocs Material has been in maintenance mode since November 2025,
and its successor Zensical has no stable release yet.) Notebooks are rendered from their stored outputs by
`notebook_pages`, in a tenth of the time that MyST-NB takes, and are not run.

page            a page, and a folder of pages that is brought up to date
targets         repository paths that documents link to, and the pages that show them
documents       docs/*.md and the documents at the top of the repository
docstrings      docstrings to Markdown
cause_pages     one page per rule, with an example from the rule's test cases; the index of causes
examples        the example finding of each rule
symptoms        the table of symptoms, from docs/symptoms.md
change_pages    one page per what-if
course_pages    the lessons
notebook_pages  one page per notebook
api_pages       one page per group of public names
source_entries  public names of the integrations, from their source: no framework is imported
option_pages    every magic, command and option, from their argument parsers
conf            settings of Sphinx
link_check      broken links, anchors and images, and external resources in the built site
"""
