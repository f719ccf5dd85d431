"""Settings of Sphinx. Nothing is loaded from other hosts: no fonts, no scripts, no inventories."""

from __future__ import annotations

from importlib.metadata import version as installed_version
from pathlib import Path

project = "gpulab"
author = "the gpulab authors"
version = release = installed_version("gpulab")
project_copyright = author

extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["files/**"]
myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
smartquotes = False  # "--steps" must not become a dash
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]  # of cells with magics and of shortened output

html_theme = "furo"
html_title = "gpulab"
html_static_path = [str(Path(__file__).parent / "theme")]
html_css_files = ["site.css"]
html_favicon = str(Path(__file__).parent / "theme" / "favicon.ico")
html_extra_path = [html_favicon]  # browsers also ask for it in the root of the site
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"font-stack": "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"},
    "dark_css_variables": {},
}
html_search_language = "en"
html_search_scorer = str(Path(__file__).parent / "theme" / "scorer.js")
python_maximum_signature_line_length = 90
add_module_names = False
toc_object_entries = False
copybutton_exclude = ".linenos, .gp, .go"
copybutton_selector = "div:not(.output-text) > div.highlight > pre"
