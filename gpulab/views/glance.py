"""What the live panel says at one moment, in words and shares, whatever draws it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from gpulab.capture.live import Live
from gpulab.sensors import GpuReading

TRAIL = 100  # points of a sparkline: at five a second, the last twenty seconds
MANY_GPUS = 3  # from here on, one tile a GPU
UNKNOWN = "not measured"


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One measured thing: its value in words, and where it stands between nothing and all."""

    label: str
    value: str
    note: str = ""
    frac: float | None = None  # None: it has no upper end, or was not measured
    trail: tuple[int | None, ...] = ()  # percent of the full height, oldest first
    bars: tuple[int, ...] = ()  # percent, one a core
    hue: str = "busy"  # busy, waiting, memory or power


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

    def data(self) -> dict[str, Any]:
        """The same as plain lists and dicts, for a widget.

        Points go as text, "12,,13" with nothing for an absent one: ipykernel looks at every item of a list, and that
        would be most of what a picture costs.
        """
        tiles = [{**vars(tile), "trail": _joined(tile.trail), "bars": _joined(tile.bars)} for tile in self.tiles]
        return {**vars(self), "progress": list(self.progress), "tiles": tiles}

    def sentence(self) -> str:
        """The same for a terminal or a screen reader."""
        tiles = (f"{tile.label} {tile.value}" for tile in self.tiles)
        return ", ".join((f"gpulab, run {self.name}: {self.phase}", *self.progress, self.elapsed, *tiles))


class Glances:
    """Makes glances of one run, and remembers their recent past for the sparklines."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._trails: dict[str, deque[float | None]] = {}
        self._last = Glance(name=name, phase="starting", elapsed_s=0.0, elapsed="0:00", progress=(), tiles=(), line="")

    def starting(self) -> Glance:
        """Before anything was measured."""
        return self._last

    def processing(self) -> Glance:
        """After the cell, before the report: the last values stand."""
        return Glance(**{**vars(self._last), "phase": "reading the recording", "line": ""})

    def of(self, live: Live) -> Glance:
        """The state of the session, in words."""
        self._last = Glance(
            name=self._name,
            phase=live.phase,
            elapsed_s=live.elapsed_s,
            elapsed=clock(live.elapsed_s),
            progress=_progress(live),
            tiles=(*self._devices(live), self._waiting(live), *self._host(live)),
            line=f"at {live.frame}" if live.frame else "",
        )
        return self._last

    def _devices(self, live: Live) -> tuple[Tile, ...]:
        if len(live.gpus) >= MANY_GPUS:
            return tuple(self._gpu(f"GPU {index}", gpu) for index, gpu in enumerate(live.gpus))
        tiles = []
        for index, gpu in enumerate(live.gpus):
            which = f"GPU {index} " if len(live.gpus) > 1 else "GPU "
            tiles += [self._busy(which + "busy", gpu), _memory(which + "memory", gpu), self._power(which, gpu)]
        return tuple(tiles)

    def _gpu(self, which: str, gpu: GpuReading) -> Tile:
        note = f"{_memory(which, gpu).value}, {watts(gpu.power_w)}"
        return Tile(
            label=which,
            value=percent(gpu.util_frac),
            note=note,
            frac=gpu.util_frac,
            trail=self._trail(which, gpu.util_frac),
        )

    def _busy(self, label: str, gpu: GpuReading) -> Tile:
        trail = self._trail(label, gpu.util_frac)
        return Tile(label=label, value=percent(gpu.util_frac), note=gpu.name, frac=gpu.util_frac, trail=trail)

    def _power(self, which: str, gpu: GpuReading) -> Tile:
        return Tile(
            label=f"{which}power",
            value=watts(gpu.power_w),
            trail=self._trail(f"{which}power", gpu.power_w, top=None),
            hue="power",
        )

    def _waiting(self, live: Live) -> Tile:
        label = "waiting for data"
        trail = self._trail(label, live.waiting_frac)
        if live.waiting_frac is None:
            return Tile(label=label, value="none", note="no DataLoader so far", trail=trail, hue="waiting")
        note = f"{live.workers} worker{'s' * (live.workers != 1)}"
        value = percent(live.waiting_frac)
        return Tile(label=label, value=value, note=note, frac=live.waiting_frac, trail=trail, hue="waiting")

    def _host(self, live: Live) -> tuple[Tile, ...]:
        cores = live.core_fracs
        busy = Tile(
            label="CPU",
            value=f"{sum(cores):.1f} of {len(cores)}" if cores else UNKNOWN,
            note="cores busy" if cores else "",
            frac=sum(cores) / len(cores) if cores else None,
            trail=() if 0 < len(cores) <= 64 else self._trail("CPU", sum(cores) / len(cores) if cores else None),
            bars=tuple(_whole(core) for core in cores) if len(cores) <= 64 else (),
        )
        if live.gpus:
            return (busy,)
        memory = Tile(
            label="memory",
            value=size(live.rss_bytes),
            note="of this process",
            trail=self._trail("memory", live.rss_bytes, top=None),
            hue="memory",
        )
        return (busy, memory)

    def _trail(self, key: str, value: float | None, top: float | None = 1.0) -> tuple[int | None, ...]:
        """The recent past of a value, in percent of `top`, or of the highest point seen where there is no top."""
        past = self._trails.setdefault(key, deque(maxlen=TRAIL))
        past.append(value)
        highest = top or max((point for point in past if point is not None), default=1.0) or 1.0
        return tuple(None if point is None else _whole(point / highest) for point in past)


def _memory(label: str, gpu: GpuReading) -> Tile:
    used, all_of_it = gpu.memory_used_bytes, gpu.memory_bytes
    if used is None or not all_of_it:
        return Tile(label=label, value=size(used), hue="memory")
    note = f"of {all_of_it / 2**30:.0f} GiB"
    return Tile(label=label, value=f"{used / 2**30:.1f} GiB", note=note, frac=used / all_of_it, hue="memory")


def _progress(live: Live) -> tuple[str, ...]:
    if not live.steps:
        return ("no step yet",)
    steps = f"step {live.steps:,}"
    if not live.steps_per_s:
        return (steps,)
    if live.steps_per_s < 1:
        return steps, f"{1 / live.steps_per_s:.1f} s a step"
    return steps, f"{live.steps_per_s:,.0f} steps/s" if live.steps_per_s >= 100 else f"{live.steps_per_s:.3g} steps/s"


def _joined(points: tuple[int | None, ...]) -> str:
    return ",".join("" if point is None else str(point) for point in points)


def _whole(frac: float) -> int:
    return round(100 * min(max(frac, 0.0), 1.0))


def percent(frac: float | None) -> str:
    """A share in percent; unknown stays unknown."""
    return UNKNOWN if frac is None else f"{100 * frac:.0f} %"


def watts(power_w: float | None) -> str:
    """A power in watts."""
    return UNKNOWN if power_w is None else f"{power_w:.0f} W"


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
