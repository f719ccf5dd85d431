"""A timeline as one HTML file: it zooms without a kernel and without a network, as deep as the file holds it.

The file runs one script, which its policy names by hash, and loads nothing. The data lie beside it as JSON in which no
character can end an element, and reach the page as text only.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from base64 import b64encode
from html import escape
from typing import Any

from gpulab.views.timeline.scene.scene import Scene
from gpulab.views.timeline.script import script, style
from gpulab.views.timeline.tiles.file_budget import held
from gpulab.wording import clean

MOST_BYTES = 2_000_000
MOST_NAMES = 4_000  # of a search
SEARCH_SHARE = 0.1  # of the file
LEAST_TILES_BYTES = 150_000  # a report may be large; the timeline is still worth opening
_STYLE = """
:root{color-scheme:light dark}
body{background:Canvas;color:CanvasText;max-width:1400px;margin:0 auto;padding:16px;font:15px/1.5 system-ui,sans-serif}
h1{position:absolute;width:1px;height:1px;margin:0;overflow:hidden;clip-path:inset(50%)}
h2{font-size:1.05em;margin:28px 0 8px}
.gpulab-page-soft{margin:0 0 12px;opacity:.78;font-size:.88em}
.gpulab-page-report{max-width:920px}
"""


def page(scene: Scene, report_html: str = "", most_bytes: int = MOST_BYTES, *, timeline_first: bool = False) -> str:
    """The page, of at most so many bytes, with `report_html` as a Report gives it: above the timeline, or under it."""
    header = scene.header()
    code = f"(() => {{\n'use strict';\n{script('page.js')}\n}})();"
    names = _names(scene, int(SEARCH_SHARE * most_bytes))
    data = {"header": header, "until": scene.until_ns, "names": names, "pieces": (), "whole": False}
    texts = (report_html, timeline_first)
    bare = _document(header, code, _json(data), *texts)
    chosen = held(scene, max(LEAST_TILES_BYTES, most_bytes - len(bare.encode())))
    return _document(header, code, _json({**data, "pieces": chosen.pieces, "whole": chosen.whole}), *texts)


def _document(header: dict[str, Any], code: str, data: str, report_html: str, timeline_first: bool) -> str:
    digest = b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    title = escape(clean(header["title"], 200))
    timeline = (
        '<div id="gpulab-timeline"></div><p class="gpulab-page-soft" id="gpulab-said" role="status"></p>'
        "<noscript><p>The timeline needs JavaScript; the report does not.</p></noscript>"
    )
    if report_html:
        report = f'<div class="gpulab-page-report">{report_html}</div>'
        # Under the timeline the report has a heading; above it, it begins with its own headline.
        timeline = f"{timeline}<h2>Report</h2>{report}" if timeline_first else f"{report}<h2>Timeline</h2>{timeline}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="color-scheme" content="light dark"><title>{title}: timeline</title>'
        f"<style>{style()}{_STYLE}</style></head><body><main>"
        f"<h1>{title}</h1>"  # not seen: the timeline and the report each name the run
        f'{timeline}</main><script type="application/json" id="gpulab-data">{data}</script>'
        f"<script>{code}</script></body></html>\n"
    )


def _json(data: dict[str, Any]) -> str:
    """JSON that may stand inside an element: no <, no > and no & is left in it, nor a line end of other alphabets."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _names(scene: Scene, room_bytes: int) -> str:
    """What a search in the file knows: each name, how often, how long in all, and its longest place; packed."""
    found = scene.search("", most=MOST_NAMES)["names"]
    while True:
        told = {"names": found, "all": len(found) < MOST_NAMES}
        packed = b64encode(gzip.compress(json.dumps(told, allow_nan=False).encode(), 6, mtime=0)).decode()
        if len(packed) <= room_bytes or not found:
            return packed
        found = found[: len(found) // 2]
