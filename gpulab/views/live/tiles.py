"""What the live panel shows: tiles, bars and words as plain values, for whatever draws them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpulab.views.wording import UNKNOWN, percent

INTERRUPT = "to stop: the interrupt button"


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One measured thing: its value in words, and where it stands between nothing and all."""

    label: str
    value: str
    note: str = ""
    frac: float | None = None  # None: it has no upper end, or was not measured
    trail: tuple[int | None, ...] = ()  # percent of the full height, oldest first
    bars: tuple[int, ...] = ()  # percent, one a core
    hue: str = "busy"  # busy, waiting, memory, power or worker
    limit: int | None = None  # percent, a line across the sparkline
    group: str = ""  # tiles of one group are small and stand together
    mark: str = ""  # "blocked": to be seen at a glance


@dataclass(frozen=True, kw_only=True)
class Share:
    """A part of a bar."""

    label: str
    frac: float
    hue: str


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Where time went so far: shares of one whole, and what exactly was measured."""

    title: str
    shares: tuple[Share, ...]
    about: str

    @property
    def words(self) -> str:
        """The shares in words."""
        return ", ".join(f"{share.label} {percent(share.frac)}" for share in self.shares)


@dataclass(frozen=True, kw_only=True)
class Glance:
    """The panel's content."""

    name: str
    phase: str
    elapsed_s: float
    elapsed: str
    progress: tuple[str, ...]
    tiles: tuple[Tile, ...]
    line: str
    bars: tuple[Bar, ...] = ()
    phases: str = ""  # a letter for each point of the longest sparkline: see phases.py
    legend: tuple[tuple[str, str], ...] = ()  # the letters among them, and their words
    span: str = ""  # how far back the sparklines go
    alert: str = ""  # as it is now
    alert_said: str = ""  # to be read out: the same from the beginning of an episode to its end
    stop: str = INTERRUPT  # how to stop where no button works

    def data(self) -> dict[str, Any]:
        """The same as plain lists and dicts, for a widget.

        Points go as text, "12,,13" with nothing for an absent one: ipykernel looks at every item of a list, and that
        would be most of what a picture costs.
        """
        tiles = [{**vars(tile), "trail": _joined(tile.trail), "bars": _joined(tile.bars)} for tile in self.tiles]
        bars = [
            {
                "title": bar.title,
                "about": bar.about,
                "words": bar.words,
                "shares": [vars(share) for share in bar.shares],
            }
            for bar in self.bars
        ]
        legend = [list(entry) for entry in self.legend]
        return {**vars(self), "progress": list(self.progress), "tiles": tiles, "bars": bars, "legend": legend}

    def sentence(self) -> str:
        """The same for a terminal or a screen reader."""
        tiles = (f"{tile.label} {tile.value}" for tile in self.tiles)
        words = ", ".join((f"gpulab, run {self.name}: {self.phase}", *self.progress, self.elapsed, *tiles))
        return f"{words}. {self.alert[0].upper()}{self.alert[1:]}" if self.alert else words


def size(number: float | None) -> str:
    """A size in MiB or GiB."""
    if number is None:
        return UNKNOWN
    return f"{number / 2**30:.2f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"


def clock(elapsed_s: float) -> str:
    """A duration as a clock shows it: 0:07, 12:30, 1:02:03."""
    minutes, seconds = divmod(int(elapsed_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _joined(points: tuple[int | None, ...]) -> str:
    return ",".join("" if point is None else str(point) for point in points)
