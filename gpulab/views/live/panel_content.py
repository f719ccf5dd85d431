"""From one Live after another to what the live panel says at that moment, and of its recent past."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from gpulab.capture.live.snapshot import Live, WorkerNow
from gpulab.columns import Column, Display, ValueKind
from gpulab.sensors import GpuReading
from gpulab.tables import GPU_SAMPLES
from gpulab.views.live.alert import THRESHOLD_FRAC, Watcher
from gpulab.views.live.phases import legend, letter
from gpulab.views.live.tiles import INTERRUPT, Bar, Glance, Share, Tile, clock, size
from gpulab.views.sensor_columns import formatter
from gpulab.views.wording import UNKNOWN, percent

TRAIL = 100  # points of a sparkline: at five a second, the last twenty seconds
MANY_GPUS = 3  # from here on, one tile a GPU
UTILISATION, MEMORY = "util_frac", "memory_used_bytes"  # sensors with a tile of their own
MANY_WORKERS = 16  # more than these share one tile


class Glances:
    """Makes glances of one run, and remembers their recent past for the sparklines."""

    def __init__(self, name: str, *, threshold_frac: float = THRESHOLD_FRAC, stop: str = INTERRUPT) -> None:
        self._name = name
        self._stop = stop
        self._threshold_frac = threshold_frac
        self._watcher = Watcher(threshold_frac)
        self._trails: dict[str, deque[float | None]] = {}
        self._shown: set[str] = set()  # the trails that this glance has lengthened
        self._moments: deque[tuple[float, str]] = deque(maxlen=TRAIL)  # when, and the letter of the phase
        self._last = Glance(
            name=name, phase="starting", elapsed_s=0.0, elapsed="0:00", progress=(), tiles=(), line="", stop=stop
        )

    def starting(self) -> Glance:
        """Before anything was measured."""
        return self._last

    def latest(self) -> Glance:
        """The last one made."""
        return self._last

    def processing(self) -> Glance:
        """After the cell, before the report: the last values stand."""
        return Glance(
            **{**vars(self._last), "phase": "reading the recording", "line": "", "alert": "", "alert_said": ""}
        )

    def of(self, live: Live) -> Glance:
        """The state of the session, in words."""
        self._moments.append((live.elapsed_s, letter(live.phase)))
        letters = "".join(of_phase for _, of_phase in self._moments)
        alert = self._watcher.look(live)
        tiles = (*self._devices(live), self._waiting(live), *self._host(live), *self._workers(live.workers_now))
        self._leave_holes()
        self._last = Glance(
            name=self._name,
            phase=live.phase,
            elapsed_s=live.elapsed_s,
            elapsed=clock(live.elapsed_s),
            progress=_progress(live),
            tiles=tiles,
            line=f"at {live.frame}" if live.frame else "",
            bars=tuple(_bars(live)),
            phases=letters,
            legend=legend(letters),
            span=f"last {max(live.elapsed_s - self._moments[0][0], 1):.0f} s",
            alert=alert.text if alert else "",
            alert_said=alert.said if alert else "",
            stop=self._stop,
        )
        return self._last

    def _devices(self, live: Live) -> tuple[Tile, ...]:
        if len(live.gpus) >= MANY_GPUS:
            return tuple(self._gpu(f"GPU {index}", gpu) for index, gpu in enumerate(live.gpus))
        tiles = []
        for index, gpu in enumerate(live.gpus):
            which = f"GPU {index} " if len(live.gpus) > 1 else "GPU "
            tiles += [self._busy(which + "busy", gpu), _memory(which + "memory", gpu)]
            tiles += [self._level(which + column.label, column, gpu) for column in _other_levels()]
        return tuple(tiles)

    def _gpu(self, which: str, gpu: GpuReading) -> Tile:
        others = (formatter(column)(gpu.value(column.name)) for column in _other_levels())
        note = ", ".join((_memory(which, gpu).value, *others))
        return Tile(
            label=which,
            value=percent(gpu.util_frac),
            note=note,
            frac=gpu.util_frac,
            trail=self._trail(which, gpu.util_frac),
            limit=_whole(self._threshold_frac),
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
            limit=_whole(self._threshold_frac),
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

    def _leave_holes(self) -> None:
        """What is not there now, as a worker between two epochs, has a hole in its trail: all trails share one time."""
        for key in self._trails.keys() - self._shown:
            self._trails[key].append(None)
        self._shown.clear()

    def _workers(self, workers: tuple[WorkerNow, ...]) -> tuple[Tile, ...]:
        loads = [worker.load_frac for worker in workers]
        if len(workers) <= MANY_WORKERS:
            return tuple(self._worker(index, worker) for index, worker in enumerate(workers))
        told = [load for load in loads if load is not None]
        blocked = sum(worker.blocked is True for worker in workers)
        return (
            Tile(
                label=f"{len(workers)} workers",
                value=f"{sum(told):.1f} cores" if told else UNKNOWN,
                note=f"{blocked} blocked on storage" if blocked else "",
                frac=sum(told) / len(workers) if told else None,
                bars=tuple(_whole(load or 0.0) for load in loads) if told else (),
                hue="worker",
                mark="blocked" if blocked else "",
            ),
        )

    def _worker(self, index: int, worker: WorkerNow) -> Tile:
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
        """The recent past of a value, in percent of `top`, or of the highest point seen where there is no top."""
        past = self._trails.setdefault(key, deque(maxlen=TRAIL))
        self._shown.add(key)
        if top is not None:  # once a point is in percent, it stays so
            past.append(None if value is None else _whole(value / top))
            return tuple(past)  # type: ignore[arg-type]
        past.append(value)
        highest = max((point for point in past if point is not None), default=1.0) or 1.0
        return tuple(None if point is None else _whole(point / highest) for point in past)


def _other_levels() -> tuple[Column, ...]:
    """The sensors that have a tile, without the two that have one of their own."""
    columns = GPU_SAMPLES.displayed(Display.LIVE)
    return tuple(c for c in columns if c.name not in (UTILISATION, MEMORY) and c.value_kind is ValueKind.LEVEL)


def _memory(label: str, gpu: GpuReading) -> Tile:
    used, all_of_it = gpu.value(MEMORY), gpu.gpu.memory_bytes
    if used is None or not all_of_it:
        return Tile(label=label, value=size(used), hue="memory")
    note = f"of {all_of_it / 2**30:.0f} GiB"
    return Tile(label=label, value=f"{used / 2**30:.1f} GiB", note=note, frac=used / all_of_it, hue="memory")


def _bars(live: Live) -> Iterator[Bar]:
    """The loop's time so far, and the GPUs' over the same time; from live values, so less exact than a ledger."""
    if live.waiting_frac is not None:
        yield Bar(
            title="loop",
            shares=(
                Share(label="waiting for data", frac=live.waiting_frac, hue="waiting"),
                Share(label="the rest of the loop", frac=1 - live.waiting_frac, hue="rest"),
            ),
            about="time since the first step: in the DataLoader's next(), and all else",
        )
    if live.gpu_busy_frac is not None:
        used, there = len(live.used_gpus), len(live.gpus)
        of = "" if there == 1 else f" ({there} GPUs)" if used == there else f" ({used} of {there} GPUs)"
        yield Bar(
            title=f"GPU{of}",
            shares=(
                Share(label="busy", frac=live.gpu_busy_frac, hue="busy"),
                Share(label="idle", frac=1 - live.gpu_busy_frac, hue="rest"),
            ),
            about="mean of the driver's utilisation since the first step: a kernel was resident, however small",
        )


def _progress(live: Live) -> tuple[str, ...]:
    if not live.steps:
        return ("no step yet",)
    steps = f"step {live.steps:,}"
    if not live.steps_per_s:
        return (steps,)
    if live.steps_per_s < 1:
        return steps, f"{1 / live.steps_per_s:.1f} s a step"
    return steps, f"{live.steps_per_s:,.0f} steps/s" if live.steps_per_s >= 100 else f"{live.steps_per_s:.3g} steps/s"


def _whole(frac: float) -> int:
    return round(100 * min(max(frac, 0.0), 1.0))
