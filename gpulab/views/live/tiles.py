"""The content of the live panel as plain values: tiles, bars and text, independent of how they are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpulab.wording import percent

INTERRUPT_HINT = "- stop: interrupt button"


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One measured quantity: its formatted value and, if it has an upper limit, the fraction of that limit."""

    label: str
    value: str
    note: str = ""
    frac: float | None = None  # None: it has no upper limit, or was not measured
    trail: tuple[int | None, ...] = ()  # points of the sparkline in percent of the full height, oldest first
    bars: tuple[int, ...] = ()  # percent, one per core
    hue: str = "busy"  # busy, waiting, memory, power or worker
    limit: int | None = None  # percent, a line across the sparkline
    group: str = ""  # "GPUs" or "workers": small tiles that are shown together; "" for a large tile
    mark: str = ""  # "blocked": the note is emphasised


@dataclass(frozen=True, kw_only=True)
class Share:
    """One segment of a bar."""

    label: str
    frac: float
    hue: str


@dataclass(frozen=True, kw_only=True)
class TileBar:
    """Time so far, split into shares that add up to 1; `note` defines the measurement."""

    title: str
    shares: tuple[Share, ...]
    note: str

    @property
    def summary(self) -> str:
        """The shares as text: "busy 34 %, idle 66 %"."""
        return ", ".join(f"{share.label} {percent(share.frac)}" for share in self.shares)


@dataclass(frozen=True, kw_only=True)
class PanelContent:
    """The content of the panel at one time."""

    name: str
    phase: str
    elapsed_s: float
    elapsed: str
    progress: tuple[str, ...]
    tiles: tuple[Tile, ...]
    line: str
    bars: tuple[TileBar, ...] = ()
    phases: str = ""  # one letter for each point of the longest sparkline: see phases.py
    legend: tuple[tuple[str, str], ...] = ()  # the letters in `phases` with their descriptions
    span: str = ""  # how far back the sparklines go
    alert: str = ""  # the current text of the alert
    alert_announcement: str = ""  # for screen readers: constant from the start of an episode to its end
    stop: str = INTERRUPT_HINT  # how to stop if the Stop button does not work

    def data(self) -> dict[str, Any]:
        """Return the content as plain lists and dicts, for a widget.

        Points are sent as text, "12,,13" with an empty item for an absent point: ipykernel inspects every item of a
        list, which would be most of the cost of an update.
        """
        tiles = [{**vars(tile), "trail": _joined(tile.trail), "bars": _joined(tile.bars)} for tile in self.tiles]
        bars = [
            {
                "title": bar.title,
                "note": bar.note,
                "summary": bar.summary,
                "shares": [vars(share) for share in bar.shares],
            }
            for bar in self.bars
        ]
        legend = [list(entry) for entry in self.legend]
        return {**vars(self), "progress": list(self.progress), "tiles": tiles, "bars": bars, "legend": legend}

    def sentence(self) -> str:
        """Return the content as one line of text, for a terminal or a screen reader."""
        tiles = (f"{tile.label} {tile.value}" for tile in self.tiles)
        text = ", ".join((f"gpulab, run {self.name}: {self.phase}", *self.progress, self.elapsed, *tiles))
        return f"{text}. {self.alert}" if self.alert else text


def _joined(points: tuple[int | None, ...]) -> str:
    return ",".join("" if point is None else str(point) for point in points)
