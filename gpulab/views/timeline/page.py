"""A timeline as one HTML file, which zooms without kernel and network, down to the detail that is stored in the file.

The file runs one script, which its content security policy allows by hash, and loads nothing. The data is JSON without
any character that could end an element, and reaches the page as text only.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from base64 import b64encode
from html import escape
from typing import Any

from gpulab.views.timeline.scene.scene import Scene
from gpulab.views.timeline.script import bundle_script, stylesheet
from gpulab.views.timeline.tiles.size_limit import select_pieces
from gpulab.wording import clean

MAX_PAGE_BYTES = 2_000_000
_MAX_NAMES = 4_000  # names in the search index
_SEARCH_FRAC = 0.1  # of the file size, for the search index
_MIN_TILES_BYTES = 150_000  # so that the timeline is useful even if the report is large
_STYLE = """
:root{color-scheme:light dark}
body{background:Canvas;color:CanvasText;max-width:1400px;margin:0 auto;padding:16px;font:15px/1.5 system-ui,sans-serif}
h1{position:absolute;width:1px;height:1px;margin:0;overflow:hidden;clip-path:inset(50%)}
h2{font-size:1.05em;margin:28px 0 8px}
.gpulab-page-soft{margin:0 0 12px;opacity:.78;font-size:.88em}
.gpulab-page-report{max-width:920px}
"""


def timeline_page(
    scene: Scene, report_html: str = "", max_bytes: int = MAX_PAGE_BYTES, *, timeline_first: bool = False
) -> str:
    """Return the page, of at most `max_bytes`, with the HTML of a report above or below the timeline."""
    header = scene.header()
    code = f"(() => {{\n'use strict';\n{bundle_script('page.js')}\n}})();"
    names = _search_index(scene, int(_SEARCH_FRAC * max_bytes))
    data = {"header": header, "until": scene.end_ns, "names": names, "pieces": (), "whole": False}
    texts = (report_html, timeline_first)
    without_tiles = _document(header, code, _json(data), *texts)
    tiles = select_pieces(scene, max(_MIN_TILES_BYTES, max_bytes - len(without_tiles.encode())))
    return _document(header, code, _json({**data, "pieces": tiles.pieces, "whole": tiles.complete}), *texts)


def _document(header: dict[str, Any], code: str, data: str, report_html: str, timeline_first: bool) -> str:
    digest = b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    title = escape(clean(header["title"], 200))
    timeline = (
        '<div id="gpulab-timeline"></div><p class="gpulab-page-soft" id="gpulab-status" role="status"></p>'
        "<noscript><p>The timeline needs JavaScript; the report does not.</p></noscript>"
    )
    if report_html:
        report = f'<div class="gpulab-page-report">{report_html}</div>'
        # Below the timeline the report gets a heading; above it, its own headline comes first.
        timeline = f"{timeline}<h2>Report</h2>{report}" if timeline_first else f"{report}<h2>Timeline</h2>{timeline}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="color-scheme" content="light dark"><title>{title}: timeline</title>'
        f"<style>{stylesheet()}{_STYLE}</style></head><body><main>"
        f"<h1>{title}</h1>"  # hidden: the timeline and the report both show the name of the run
        f'{timeline}</main><script type="application/json" id="gpulab-data">{data}</script>'
        f"<script>{code}</script></body></html>\n"
    )


def _json(data: dict[str, Any]) -> str:
    """Return JSON that is safe inside an element: <, >, & and the Unicode line separators are escaped."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _search_index(scene: Scene, max_bytes: int) -> str:
    """Return the search index, compressed: names with count, total time and longest event; halved until it fits."""
    names = scene.search("", max_results=_MAX_NAMES)["names"]
    while True:
        index = {"names": names, "all": len(names) < _MAX_NAMES}
        packed = b64encode(gzip.compress(json.dumps(index, allow_nan=False).encode(), 6, mtime=0)).decode()
        if len(packed) <= max_bytes or not names:
            return packed
        names = names[: len(names) // 2]
