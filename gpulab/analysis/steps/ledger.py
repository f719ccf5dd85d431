"""Where the time of each interior step went: an exact partition, in whole nanoseconds.

Every instant of a step is either device work (matrix kernels > other kernels > communication > copies: what is
hidden behind the former is not counted again) or idle, and then it is named by what the launching threads did, in
a fixed priority: loader > allocation > synchronisation > copy call > launch > other runtime call > operator
dispatch > Python. Without a GPU the CPU is the device: its work is the operators that are long enough to be worth
their call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.nesting import innermost
from gpulab.analysis.kernels.table import is_matrix
from gpulab.analysis.steps.detection import Steps, typical_ns
from gpulab.intervals import Ints, Spans, covered_ns, gaps, intersect, nothing, subtract, union
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import DEVICE_KINDS, RUNTIME_KINDS, Kind, StallKind

SMALL_OP_NS = 10_000  # calling an operator costs 2-5 us here; one this short is mostly its own call
LONG_GAP_NS = 200_000  # Python needs 1-100 us from one operator to the next; a longer gap is code of its own


@dataclass(frozen=True)
class Part:
    """One row of the ledger: its key, its name on screen, whether the device works in it, what it means."""

    key: str
    label: str
    busy: bool
    meaning: str


GPU_PARTS = (
    Part("matmul", "matrix kernels", True, "matrix products, convolutions and fused attention on the GPU"),
    Part("kernels", "other kernels", True, "every other kernel"),
    Part("communication", "exposed communication", True, "collectives with no kernel beside them"),
    Part("copies", "exposed copies", True, "copies and memsets with no kernel beside them"),
    Part("loader", "waiting for data", False, "GPU idle while the main thread was inside DataLoader.__next__"),
    Part("alloc", "allocation calls", False, "GPU idle during cudaMalloc, cudaFree and the like"),
    Part("sync", "after synchronisation", False, "GPU idle while the host was inside a synchronising call"),
    Part("copy_call", "copy calls", False, "GPU idle while the host was inside a copy call"),
    Part("launch", "launch calls", False, "GPU idle while the host was inside a launch call"),
    Part("runtime", "other CUDA calls", False, "GPU idle during any other runtime call"),
    Part("dispatch", "operator dispatch", False, "GPU idle while PyTorch prepared an operator"),
    Part("glue", "Python between operators", False, "GPU idle in the short Python stretches between operators"),
    Part("python", "Python outside PyTorch", False, "GPU idle in long stretches without any PyTorch call"),
)
CPU_PARTS = (
    Part("compute", "compute", True, "operators of 10 us and more"),
    Part("loader", "waiting for data", False, "the main thread was inside DataLoader.__next__"),
    Part("dispatch", "small operators", False, "operators under 10 us and the overhead of calling operators"),
    Part("glue", "Python between operators", False, "the short Python stretches between operators"),
    Part("python", "Python outside PyTorch", False, "long stretches without any PyTorch call"),
)
DISPATCHING = ("launch", "runtime", "dispatch", "glue")
HOST_KINDS = {  # what the host does in each idle part, in order of priority
    "loader": Kind.LOADER,
    "alloc": Kind.ALLOC,
    "sync": Kind.SYNC,
    "copy_call": Kind.COPY_CALL,
    "launch": Kind.LAUNCH,
    "runtime": Kind.RUNTIME,
    "dispatch": Kind.OP,
}


@dataclass(frozen=True, eq=False)
class Ledger:
    """Per interior step, the ns that went to each part; for every step the parts sum to its length exactly."""

    device: str  # "gpu" or "cpu": which processor counts as the device
    parts: tuple[Part, ...]  # in the order they are shown
    step_ns: Ints  # length of each interior step
    part_ns: Mapping[str, Ints]  # key -> one value per interior step
    spans: Mapping[str, Spans]  # key -> when, over all interior steps
    burst: int = 1  # as Steps.burst

    def of(self, *keys: str) -> Ints:
        """Per interior step, the ns of these parts together; a part this device does not have adds nothing."""
        return sum((self.part_ns[key] for key in keys if key in self.part_ns), np.zeros_like(self.step_ns))

    def median_ns(self, *keys: str) -> int:
        """The median over interior steps (over bursts of them, where they come in bursts) of these parts together."""
        return typical_ns(self.of(*keys), self.burst)

    def share(self, *keys: str) -> float:
        """These parts of a typical step, 0-1, by medians: what happens in most steps, not in a few."""
        return self.median_ns(*keys) / max(1, typical_ns(self.step_ns, self.burst))

    def range_ns(self, *keys: str) -> tuple[int, int]:
        """Smallest and largest over interior steps."""
        values = self.of(*keys)
        return int(values.min()), int(values.max())

    def frac(self, *keys: str) -> float:
        """Share of all interior step time, 0-1; over all parts these sum to one."""
        return float(self.of(*keys).sum() / self.step_ns.sum())

    @property
    def busy_frac(self) -> float:
        """Share of all interior step time in which the device worked."""
        return self.frac(*(part.key for part in self.parts if part.busy))

    @property
    def idle_frac(self) -> float:
        """Share of all interior step time in which the device did nothing."""
        return self.frac(*(part.key for part in self.parts if not part.busy))

    def label(self, key: str) -> str:
        """The name of a part on screen."""
        return next(part.label for part in self.parts if part.key == key)


def ledger(run: Run, steps: Steps) -> Ledger | None:
    """The ledger of a run's interior steps; None where no step was recorded with events."""
    start, end = steps.interior_bounds_ns
    real = end > start
    start, end = start[real], end[real]
    if not len(start) or not len(run.event_rows):
        return None
    window = union(start, end)
    on_gpu = bool(np.isin(run.event_rows["kind"], DEVICE_KINDS).any())
    layers = _gpu_layers(run, window) if on_gpu else _cpu_layers(run, window)
    parts = GPU_PARTS if on_gpu else CPU_PARTS
    spans = partition(window, layers, rest=parts[-1].key)
    part_ns = {part.key: covered_ns(spans[part.key], start, end) for part in parts}
    return Ledger("gpu" if on_gpu else "cpu", parts, end - start, part_ns, spans, steps.burst)


def main_device(run: Run) -> int:
    """The GPU that did most work in this run."""
    events = run.event_rows
    work = np.flatnonzero(events["kind"] >= min(DEVICE_KINDS))
    busiest = np.bincount(np.maximum(events["device"][work], 0), weights=events["dur_ns"][work])
    return int(busiest.argmax())


def host_threads(run: Run) -> Ints:
    """The threads whose doings explain the device: those that start its work, and the main one."""
    rows = run.event_rows.of_kind(Kind.LAUNCH, Kind.COPY_CALL)
    return np.union1d(np.unique(rows["thread"]), [run.main_thread])


def partition(window: Spans, layers: Sequence[tuple[str, Spans]], rest: str) -> dict[str, Spans]:
    """Each instant of the window to the first layer that covers it; what none covers to `rest`."""
    left, parts = window, {}
    for key, spans in layers:
        parts[key] = intersect(left, spans)
        left = subtract(left, spans)
    parts[rest] = left
    return parts


def host_parts(run: Run, window: Spans, device: str) -> dict[str, Spans]:
    """What the host did at every instant of a window, whether the device worked meanwhile or not."""
    on_gpu = device == "gpu"
    layers = host_layers(_host_events(run, window), window) if on_gpu else _cpu_layers(run, window)
    return partition(window, layers, rest=(GPU_PARTS if on_gpu else CPU_PARTS)[-1].key)


def _gpu_layers(run: Run, window: Spans) -> list[tuple[str, Spans]]:
    work = _inside(run.event_rows.of_kind(*DEVICE_KINDS), window)
    work = work.where(work["device"] == main_device(run))
    return [*device_layers(work), *host_layers(_host_events(run, window), window)]


def device_layers(work: Rows) -> list[tuple[str, Spans]]:
    """Device work by part, in order of priority."""
    kernel = work["kind"] == Kind.KERNEL
    matrix = kernel & work.matching(is_matrix)
    return [
        ("matmul", work.where(matrix).spans()),
        ("kernels", work.where(kernel & ~matrix).spans()),
        ("communication", work.of_kind(Kind.COLLECTIVE).spans()),
        ("copies", work.of_kind(Kind.MEMCPY, Kind.MEMSET).spans()),
    ]


def host_layers(host: Rows, window: Spans) -> list[tuple[str, Spans]]:
    """What host threads did, by part, in order of priority; what no part covers is Python outside PyTorch."""
    layers = [(key, host.of_kind(kind).spans()) for key, kind in HOST_KINDS.items()]
    return [*layers, ("glue", _glue(host, window))]


def _cpu_layers(run: Run, window: Spans) -> list[tuple[str, Spans]]:
    host = _host_events(run, window)
    ops = host.of_kind(Kind.OP)
    return [
        ("loader", host.of_kind(Kind.LOADER).spans()),
        ("compute", _compute(ops)),
        ("dispatch", ops.spans()),
        ("glue", _glue(host, window)),
    ]


def _compute(ops: Rows) -> Spans:
    """The own time of operators that have enough of it to be worth their call."""
    own = innermost(ops)
    worth = own.per_row_ns(len(ops)) >= SMALL_OP_NS
    return union(own.start_ns[worth[own.row]], own.end_ns[worth[own.row]])


def _host_events(run: Run, window: Spans) -> Rows:
    events = run.event_rows
    mine = _inside(events.where(np.isin(events["thread"], host_threads(run))), window)
    compiling = run.stall_rows.of_kind(StallKind.COMPILE)
    if not len(compiling):
        return mine
    # torch.compile is Python code, whatever operators it tries out and however it records its own phases as operators.
    within = covered_ns(compiling.spans(), mine["start_ns"], mine["start_ns"] + mine["dur_ns"])
    return mine.where((mine["kind"] != Kind.OP) | (2 * within <= mine["dur_ns"]))


def _glue(host: Rows, window: Spans) -> Spans:
    """The short gaps between one PyTorch call and the next."""
    calls = host.of_kind(Kind.OP, Kind.LOADER, *RUNTIME_KINDS).spans()
    if not len(calls.start_ns):
        return nothing()
    between = gaps(calls, int(window.start_ns[0]), int(window.end_ns[-1]))
    short = between.end_ns - between.start_ns < LONG_GAP_NS
    return Spans(between.start_ns[short], between.end_ns[short])


def _inside(rows: Rows, window: Spans) -> Rows:
    """The rows that reach into the window's extent."""
    first, last = int(window.start_ns[0]), int(window.end_ns[-1])
    return rows.where((rows["start_ns"] < last) & (rows["start_ns"] + rows["dur_ns"] > first))
