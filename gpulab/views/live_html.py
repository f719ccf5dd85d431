"""The live panel as plain markup, for front ends where a widget does not move while a cell runs."""

from __future__ import annotations

from html import escape

from gpulab.views.glance import Glance, Tile

_HUES = {"busy": "#1976d2", "waiting": "#f57c00", "memory": "#388e3c", "power": "#0097a7"}
_SOFT = "opacity:.7"


def markup(glance: Glance) -> str:
    """The panel as HTML with style attributes only: nothing in it needs a script, and any theme's colours show."""
    tiles = "".join(map(_tile, glance.tiles))
    progress = escape(" · ".join((*glance.progress, glance.elapsed)))
    return (
        '<div role="group" style="max-width:920px;min-height:150px;padding:10px 12px;box-sizing:border-box;'
        f'border:1px solid rgba(128,128,128,.4);border-radius:8px;font:13px/1.35 system-ui,sans-serif" '
        f'aria-label="{escape(f"gpulab, run {glance.name}, live")}">'
        '<div style="display:flex;flex-wrap:wrap;gap:4px 12px">'
        f"<b>{escape(glance.phase)}</b><code>{escape(glance.name)}</code>"
        f'<span style="margin-left:auto">{progress}</span>'
        f'<span style="{_SOFT}">to stop: the interrupt button</span></div>'
        f'<div style="display:flex;flex-wrap:wrap;gap:8px;margin-top:8px">{tiles}</div>'
        f'<div style="margin-top:8px;font:12px monospace;{_SOFT}">{escape(glance.line) or "&nbsp;"}</div></div>'
    )


def _tile(tile: Tile) -> str:
    return (
        '<div style="flex:1 1 138px;min-width:0;padding:6px 10px 8px;border-radius:6px;'
        'background:rgba(128,128,128,.1)">'
        f'<div style="font-size:12px;{_SOFT}">{escape(tile.label)}</div>'
        f'<div><b style="font-size:18px">{escape(tile.value)}</b> '
        f'<span style="font-size:12px;{_SOFT}">{escape(tile.note)}</span></div>{_share(tile)}</div>'
    )


def _share(tile: Tile) -> str:
    if tile.frac is None:
        return ""
    percent = 100 * min(max(tile.frac, 0.0), 1.0)
    return (
        '<div style="height:8px;margin-top:6px;border-radius:4px;background:rgba(128,128,128,.2)">'
        f'<div style="width:{percent:.0f}%;height:8px;border-radius:4px;background:{_HUES[tile.hue]}"></div></div>'
    )
