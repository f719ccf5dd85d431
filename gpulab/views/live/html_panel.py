"""The live panel as static HTML, for front ends in which a widget is not updated while a cell runs."""

from __future__ import annotations

from html import escape

from gpulab.views.live.phases import phase_marks
from gpulab.views.live.tiles import PanelContent, Tile, TileBar
from gpulab.views.sheet.html_table import KEEP_COLOUR

# Every colour has a contrast of 3:1 or more on white and on the dark greys of notebooks, of which Colab's is lightest.
_HUES = {
    "busy": "#3c90d0",
    "waiting": "#da6a1b",
    "memory": "#1f9c73",
    "power": "#b870b7",
    "worker": "#9b8a32",
    "rest": "rgba(128,128,128,.35)",
}
_SOFT = "opacity:.8"  # black or white text keeps a contrast of 4.5:1 or more
_LEVELS = "▁▂▃▄▅▆▇█"
_GAP = "\u00a0"
_POINTS = 28  # characters of a sparkline that fit into a tile


def panel_html(glance: PanelContent) -> str:
    """Return the panel as HTML with style attributes only: it needs no script and works with every theme."""
    progress = escape(" · ".join((*glance.progress, f"{glance.elapsed} elapsed")))
    bars = "".join(map(_bar, glance.bars))
    tiles = "".join(_tile(tile, glance.phases) for tile in glance.tiles if not tile.group)
    gpus, workers = (
        "".join(_small_tile(tile, glance.phases) for tile in glance.tiles if tile.group == group)
        for group in ("GPUs", "workers")
    )
    return (
        '<div role="group" style="max-width:920px;min-height:150px;padding:10px 12px;box-sizing:border-box;'
        f'border:1px solid rgba(128,128,128,.4);border-radius:8px;font:13px/1.35 system-ui,sans-serif" '
        f'aria-label="{escape(f"gpulab, run {glance.name}, live")}">'
        '<div style="display:flex;flex-wrap:wrap;gap:4px 12px">'
        f"<b>{escape(glance.phase)}</b><code>{escape(glance.name)}</code>"
        f'<span style="margin-left:auto">{progress}</span>'
        f'<span style="{_SOFT}">{escape(glance.stop)}</span></div>'
        f"{_alert(glance)}{bars}"
        f"{_row(gpus)}{_row(tiles)}{_row(workers)}"
        f"{_legend(glance)}"
        f'<div style="margin-top:6px;font:12px monospace;{_SOFT}">{escape(glance.line) or "&nbsp;"}</div></div>'
    )


def _row(tiles: str) -> str:
    return f'<div style="display:flex;flex-wrap:wrap;gap:6px;margin-top:8px">{tiles}</div>' if tiles else ""


def sparkline(trail: tuple[int | None, ...]) -> str:
    """Return the points (in percent) as a row of block characters; an absent point leaves a gap."""
    return "".join(_GAP if point is None else _LEVELS[min(point * 8 // 100, 7)] for point in _downsample(trail))


def _downsample(points: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """Average neighbouring points so that at most `_POINTS` remain."""
    group_size = _points_per_character(len(points))
    groups = [points[max(end - group_size, 0) : end] for end in range(len(points), 0, -group_size)]
    means = []
    for group in reversed(groups):
        measured = [point for point in group if point is not None]
        means.append(round(sum(measured) / len(measured)) if measured else None)
    return tuple(means)


def _points_per_character(points: int) -> int:
    return -(-points // _POINTS) or 1


def _alert(glance: PanelContent) -> str:
    # No role=status: the panel is replaced several times a second, and a screen reader would read it out each time.
    if not glance.alert:
        return ""
    return (
        f'<div style="margin-top:8px;padding:4px 10px;border-left:4px solid {_HUES["waiting"]};'
        f'background:rgba(208,101,26,.12)"><b>Alert</b> {escape(glance.alert)}</div>'
    )


def _bar(bar: TileBar) -> str:
    parts = "".join(
        f'<span style="display:inline-block;height:10px;width:{100 * share.frac:.1f}%;'
        f'background:{_HUES.get(share.hue, _HUES["rest"])};{KEEP_COLOUR}"></span>'
        for share in bar.shares
    )
    return (
        '<div style="margin-top:6px;font-size:12px">'
        f"<div><b>{escape(bar.title)}</b> {escape(bar.summary)} "
        f'<span style="{_SOFT}">({escape(bar.note)})</span></div>'
        f'<div style="font-size:0;white-space:nowrap;border-radius:4px;overflow:hidden">{parts}</div></div>'
    )


def _tile(tile: Tile, phases: str) -> str:
    return (
        '<div style="flex:1 1 150px;min-width:0;padding:6px 10px 8px;border-radius:6px;'
        'background:rgba(128,128,128,.1)">'
        f'<div style="font-size:12px;{_SOFT}">{escape(tile.label)}</div>'
        f'<div><b style="font-size:18px">{escape(tile.value)}</b> '
        f'<span style="font-size:12px;{_SOFT}">{escape(tile.note)}</span></div>'
        f"{_graph(tile, phases)}</div>"
    )


def _small_tile(tile: Tile, phases: str) -> str:
    return (
        '<div style="flex:1 1 200px;min-width:0;padding:3px 8px;border-radius:4px;background:rgba(128,128,128,.1);'
        'font-size:12px;overflow:hidden">'
        f'{escape(tile.label)} <b>{escape(tile.value)}</b> <span style="{_SOFT}">{escape(tile.note)}</span>'
        f"{_graph(tile, phases)}</div>"
    )


def _graph(tile: Tile, phases: str) -> str:
    """Return the sparkline with the phases under it; without a sparkline, the fraction as a bar."""
    if any(point is not None for point in tile.trail):
        letters = phases[-len(tile.trail) :]
        band = phase_marks(letters[:: -_points_per_character(len(letters))][::-1])
        return (
            '<div aria-hidden="true" style="font:11px/1 monospace;white-space:pre;margin-top:4px;overflow:hidden">'
            f'<span style="color:{_HUES[tile.hue]}">{sparkline(tile.trail)}</span>'
            f'<div style="{_SOFT}">{band}</div></div>'
        )
    if tile.frac is None:
        return ""
    percent = 100 * min(max(tile.frac, 0.0), 1.0)
    return (
        '<div style="height:8px;margin-top:6px;border-radius:4px;background:rgba(128,128,128,.2)">'
        f'<div style="width:{percent:.0f}%;height:8px;border-radius:4px;background:{_HUES[tile.hue]};{KEEP_COLOUR}">'
        "</div></div>"
    )


def _legend(glance: PanelContent) -> str:
    """Return the legend of the phase marks under the sparklines."""
    if not glance.phases:
        return ""
    text = " · ".join(f"{phase_marks(letter)} {description}" for letter, description in glance.legend)
    return f'<div style="margin-top:6px;font-size:12px;{_SOFT}">{escape(glance.span)}: {escape(text)}</div>'
