"""Turns snapshots of a session (`LiveSnapshot`) into the content of the live panel, with sparklines."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from gpulab.capture.live.snapshot import LiveSnapshot, WorkerState
from gpulab.columns import Column, Display, ValueKind
from gpulab.sensors import GpuReading
from gpulab.tables import GPU_SAMPLES
from gpulab.views.live.alert import THRESHOLD_FRAC, IdleGpuDetector
from gpulab.views.live.phases import phase_legend, phase_letter
from gpulab.views.live.tiles import INTERRUPT_HINT, PanelContent, Share, Tile, TileBar
from gpulab.views.sensor_columns import formatter
from gpulab.wording import UNKNOWN, clock_time, count, duration, number, percent, quantity, size

TRAIL_POINTS = 100  # points of a sparkline: at five a second, the last 20 s
MANY_GPUS = 3  # with this many GPUs or more, each GPU has one small tile
UTILISATION_COLUMN, MEMORY_COLUMN = "util_frac", "memory_used_bytes"  # sensors with a tile of their own
_DRIVER_NOTE = "mean driver utilisation since the first step: busy while any kernel runs, however small"
_ESTIMATED_NOTE = "estimated share of the time since the first step in which a kernel or copy runs"
MANY_WORKERS = 16  # more workers than this share one tile


class PanelContentBuilder:
    """Builds the panel content of one run, and stores recent values for the sparklines."""

    def __init__(self, name: str, *, threshold_frac: float = THRESHOLD_FRAC, stop: str = INTERRUPT_HINT) -> None:
        self._name = name
        self._stop = stop
        self._threshold_frac = threshold_frac
        self._watcher = IdleGpuDetector(threshold_frac)
        self._trails: dict[str, deque[float | None]] = {}
        self._extended: set[str] = set()  # keys of the trails that the current update has extended
        self._phases: deque[tuple[float, str]] = deque(maxlen=TRAIL_POINTS)  # elapsed seconds, letter of the phase
        self._last = PanelContent(
            name=name, phase="starting", elapsed_s=0.0, elapsed="0:00", progress=(), tiles=(), line="", stop=stop
        )

    def initial(self) -> PanelContent:
        """Return the content before the first measurement."""
        return self._last

    def latest(self) -> PanelContent:
        """Return the most recent content."""
        return self._last

    def processing(self) -> PanelContent:
        """Return the content between the end of the cell and the report: the last values, with a new phase."""
        return replace(self._last, phase="analysing the recording", line="", alert="", alert_announcement="")

    def build(self, live: LiveSnapshot, user_alerts: str = "") -> PanelContent:
        """Build the content for a snapshot. `user_alerts`: the text of the alerts that the user asked for."""
        self._phases.append((live.elapsed_s, phase_letter(live.phase)))
        letters = "".join(symbol for _, symbol in self._phases)
        alert = self._watcher.update(live)
        tiles = (*self._devices(live), self._waiting(live), *self._host(live), *self._workers(live.worker_states))
        self._extend_absent_trails()
        self._last = PanelContent(
            name=self._name,
            phase=live.phase,
            elapsed_s=live.elapsed_s,
            elapsed=clock_time(live.elapsed_s),
            progress=_progress(live),
            tiles=tiles,
            line=f"at {live.frame}" if live.frame else "",
            bars=tuple(_bars(live)),
            phases=letters,
            legend=phase_legend(letters),
            span=f"last {duration(1e9 * max(round(live.elapsed_s - self._phases[0][0]), 1))}",
            alert="; ".join(filter(None, (user_alerts, alert.text if alert else ""))),
            alert_announcement="; ".join(filter(None, (user_alerts, alert.announcement if alert else ""))),
            stop=self._stop,
        )
        return self._last

    def _devices(self, live: LiveSnapshot) -> tuple[Tile, ...]:
        if len(live.gpus) >= MANY_GPUS:
            return tuple(self._gpu(f"GPU {index}", gpu) for index, gpu in enumerate(live.gpus))
        tiles = []
        for index, gpu in enumerate(live.gpus):
            prefix = f"GPU {index} " if len(live.gpus) > 1 else "GPU "
            tiles += [self._busy(prefix + "busy", gpu), _memory(prefix + "memory", gpu)]
            levels = (column for column in _other_levels() if column.name in gpu.values)
            tiles += [self._level(prefix + column.label, column, gpu) for column in levels]
        return tuple(tiles)

    def _gpu(self, label: str, gpu: GpuReading) -> Tile:
        levels = (formatter(column)(gpu.value(column.name)) for column in _other_levels())
        note = ", ".join((_memory(label, gpu).value, *levels))
        return Tile(
            label=label,
            value=percent(gpu.util_frac),
            note=note,
            frac=gpu.util_frac,
            trail=self._trail(label, gpu.util_frac),
            limit=_whole_percent(self._threshold_frac),
            group="GPUs",
        )

    def _busy(self, label: str, gpu: GpuReading) -> Tile:
        trail = self._trail(label, gpu.util_frac)
        return Tile(
            label=label,
            value=percent(gpu.util_frac),
            note=gpu.gpu.name,
            frac=gpu.util_frac,
            trail=trail,
            limit=_whole_percent(self._threshold_frac),
        )

    def _level(self, label: str, column: Column, gpu: GpuReading) -> Tile:
        value = gpu.value(column.name)
        return Tile(
            label=label,
            value=formatter(column)(value),
            frac=value if column.is_share else None,
            trail=self._trail(label, value, top=1.0 if column.is_share else None),
            hue="busy" if column.is_share else "power",
        )

    def _waiting(self, live: LiveSnapshot) -> Tile:
        label = "waiting for data"
        trail = self._trail(label, live.waiting_frac)
        if live.waiting_frac is None:
            return Tile(label=label, value="none", note="no DataLoader so far", trail=trail, hue="waiting")
        note = count(live.workers, "worker")
        value = percent(live.waiting_frac)
        return Tile(label=label, value=value, note=note, frac=live.waiting_frac, trail=trail, hue="waiting")

    def _host(self, live: LiveSnapshot) -> tuple[Tile, ...]:
        cores = live.core_fracs
        busy = Tile(
            label="CPU",
            value=quantity(sum(cores), f"of {len(cores)}", 1) if cores else UNKNOWN,
            note="cores busy" if cores else "",
            frac=sum(cores) / len(cores) if cores else None,
            trail=() if 0 < len(cores) <= 64 else self._trail("CPU", sum(cores) / len(cores) if cores else None),
            bars=tuple(_whole_percent(core) for core in cores) if len(cores) <= 64 else (),
        )
        if live.gpus:
            return (busy,) if cores else ()  # the panel of a virtual GPU does not read the host
        memory = Tile(
            label="memory",
            value=size(live.rss_bytes),
            note="RSS of this process",
            trail=self._trail("memory", live.rss_bytes, top=None),
            hue="memory",
        )
        return (busy, memory)

    def _extend_absent_trails(self) -> None:
        """Add a gap to trails without a current value, such as a worker between two epochs: trails share one time."""
        for key in self._trails.keys() - self._extended:
            self._trails[key].append(None)
        self._extended.clear()

    def _workers(self, workers: tuple[WorkerState, ...]) -> tuple[Tile, ...]:
        loads = [worker.load_frac for worker in workers]
        if len(workers) <= MANY_WORKERS:
            return tuple(self._worker(index, worker) for index, worker in enumerate(workers))
        measured = [load for load in loads if load is not None]
        blocked = sum(worker.blocked is True for worker in workers)
        return (
            Tile(
                label=f"{len(workers)} workers",
                value=quantity(sum(measured), "cores", 1) if measured else UNKNOWN,
                note=f"{blocked} blocked on storage" if blocked else "",
                frac=sum(measured) / len(workers) if measured else None,
                bars=tuple(_whole_percent(load or 0.0) for load in loads) if measured else (),
                hue="worker",
                mark="blocked" if blocked else "",
            ),
        )

    def _worker(self, index: int, worker: WorkerState) -> Tile:
        label = f"worker {index}"
        return Tile(
            label=label,
            value=percent(worker.load_frac),
            note="blocked on storage" if worker.blocked else "",
            frac=worker.load_frac,
            trail=self._trail(label, worker.load_frac),
            hue="worker",
            group="workers",
            mark="blocked" if worker.blocked else "",
        )

    def _trail(self, key: str, value: float | None, top: float | None = 1.0) -> tuple[int | None, ...]:
        """Append a value and return its recent past in percent of `top`, or without `top` of the highest point."""
        trail = self._trails.setdefault(key, deque(maxlen=TRAIL_POINTS))
        self._extended.add(key)
        if top is not None:  # store percentages, so that they are computed once
            trail.append(None if value is None else _whole_percent(value / top))
            return tuple(trail)  # type: ignore[arg-type]
        trail.append(value)
        highest = max((point for point in trail if point is not None), default=1.0) or 1.0
        return tuple(None if point is None else _whole_percent(point / highest) for point in trail)


def _other_levels() -> tuple[Column, ...]:
    """Return the sensors on the live panel except utilisation and memory, which have tiles of their own."""
    columns = GPU_SAMPLES.displayed(Display.LIVE)
    return tuple(
        c for c in columns if c.name not in (UTILISATION_COLUMN, MEMORY_COLUMN) and c.value_kind is ValueKind.LEVEL
    )


def _memory(label: str, gpu: GpuReading) -> Tile:
    used_bytes, total_bytes = gpu.value(MEMORY_COLUMN), gpu.gpu.memory_bytes
    if used_bytes is None or not total_bytes:
        return Tile(label=label, value=size(used_bytes), hue="memory")
    note = f"of {size(total_bytes)}"
    return Tile(label=label, value=size(used_bytes), note=note, frac=used_bytes / total_bytes, hue="memory")


def _bars(live: LiveSnapshot) -> Iterator[TileBar]:
    """Yield the time of the loop so far, and of the GPUs over the same time; less exact than a ledger."""
    if live.waiting_frac is not None:
        yield TileBar(
            title="loop",
            shares=(
                Share(label="waiting for data", frac=live.waiting_frac, hue="waiting"),
                Share(label="rest of the loop", frac=1 - live.waiting_frac, hue="rest"),
            ),
            note="time since the first step, split into DataLoader next() calls and everything else",
        )
    if live.gpu_busy_frac is not None:
        used, total = len(live.used_gpus), len(live.gpus)
        gpus = "" if total == 1 else f" ({total} GPUs)" if used == total else f" ({used} of {total} GPUs)"
        yield TileBar(
            title=f"GPU{gpus}",
            shares=(
                Share(label="busy", frac=live.gpu_busy_frac, hue="busy"),
                Share(label="idle", frac=1 - live.gpu_busy_frac, hue="rest"),
            ),
            note=_ESTIMATED_NOTE if live.phase.startswith("virtual") else _DRIVER_NOTE,
        )


def _progress(live: LiveSnapshot) -> tuple[str, ...]:
    if not live.steps:
        return ("no step yet",)
    steps = _steps(live)
    if not live.steps_per_s:
        return (steps,)
    if live.steps_per_s < 1:
        return steps, f"{duration(1e9 / live.steps_per_s)} per step"
    return steps, f"{number(live.steps_per_s)} steps/s"


def _steps(live: LiveSnapshot) -> str:
    """Return "step 12", "step 12 of 40" or, from the second pass over the data on, "step 52 (epoch 2: 12 of 40)"."""
    current = live.loader_pass
    if current is None:
        return f"step {live.steps:,}"
    position = f"{current.step:,} of {current.steps:,}"
    return f"step {position}" if current.epoch == 1 else f"step {live.steps:,} (epoch {current.epoch:,}: {position})"


def _whole_percent(frac: float) -> int:
    return round(100 * min(max(frac, 0.0), 1.0))
