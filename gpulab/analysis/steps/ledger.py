"""The ledger: an exact partition of the time of each interior step, in whole nanoseconds.

Time in which the device works is attributed in this order: matrix kernels > other kernels > communication > copies.
Overlapped work of lower priority is not counted again. Idle time is attributed to the activity of the launching
threads, in this order: loader > allocation > synchronisation > copy call > launch > other runtime call > operator
dispatch > Python. If no operators were recorded, as by Nsight Systems, the time outside CUDA calls is not divided
further. Without a GPU the CPU is the device: its work is the operators that take longer than their dispatch. Ranks on
CPUs communicate in threads of the backend (gloo): time without an operator meanwhile is communication.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.cpu_collectives import cpu_collective_rows, cpu_collectives
from gpulab.analysis.events.nesting import innermost
from gpulab.analysis.events.per_run import cached_by_run
from gpulab.analysis.kernels.kernel_table import is_matrix
from gpulab.analysis.steps.detection import Steps, typical_ns
from gpulab.intervals import Ints, Spans, covered_ns, gaps, intersect, no_spans, subtract, union
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.run_facts import has_operators
from gpulab.tables import DEVICE_KINDS, RUNTIME_KINDS, EventKind, StallKind

SMALL_OP_NS = 10_000  # dispatching an operator takes 2-5 us; a shorter operator is mostly dispatch
LONG_GAP_NS = 200_000  # Python needs 1-100 us between operators; a longer gap is other code of the loop
_MIN_CRASHED_NS = 100_000_000  # a program that failed before its first step, and ran for less, trained nothing


@dataclass(frozen=True)
class Part:
    """One row of the ledger: key, label, whether the device works, and meaning."""

    key: str
    label: str
    busy: bool
    meaning: str


GPU_PARTS = (
    Part("matmul", "matrix kernels", True, "matrix products, convolutions and fused attention on the GPU"),
    Part("kernels", "other kernels", True, "every other kernel"),
    Part("communication", "exposed communication", True, "collectives not overlapped by a kernel"),
    Part("copies", "exposed copies", True, "copies and memsets not overlapped by a kernel or a collective"),
    Part("loader", "waiting for data", False, "GPU idle while the main thread was inside next() of the DataLoader"),
    Part("alloc", "allocation calls", False, "GPU idle during cudaMalloc, cudaFree and similar calls"),
    Part("sync", "synchronising calls", False, "GPU idle while the host was inside a synchronising call"),
    Part("copy_call", "copy calls", False, "GPU idle while the host was inside a copy call"),
    Part("launch", "launch calls", False, "GPU idle while the host was inside a launch call"),
    Part("runtime", "other CUDA calls", False, "GPU idle during any other runtime call"),
    Part("dispatch", "operator dispatch", False, "GPU idle while PyTorch prepared an operator"),
    Part("glue", "Python code < 0.2 ms at a time", False, "GPU idle in short gaps of Python code between operators"),
    Part("python", "Python code >= 0.2 ms at a time", False, "GPU idle in long gaps without any PyTorch call"),
)
# Without operators, time outside CUDA calls may be any of loading data, dispatch and Python code.
HOST_CODE = Part(
    "python", "host outside CUDA calls", False, "GPU idle outside CUDA calls: data, dispatch or Python, not recorded"
)
CPU_PARTS = (
    Part("compute", "long operators (>= 10 us)", True, "operators of 10 us and more"),
    Part("loader", "waiting for data", False, "the main thread was inside next() of the DataLoader"),
    Part("dispatch", "short operators and dispatch", False, "operators under 10 us, and dispatching operators"),
    Part("communication", "waiting for collectives", False, "the main thread waited for an exchange between ranks"),
    Part("glue", "Python code < 0.2 ms at a time", False, "short gaps of Python code between operators"),
    Part("python", "Python code >= 0.2 ms at a time", False, "long gaps without any PyTorch call"),
)
DISPATCH_KEYS = ("launch", "runtime", "dispatch", "glue")
HOST_KINDS = {  # the host events of each idle part, in order of priority
    "loader": EventKind.LOADER,
    "alloc": EventKind.ALLOC,
    "sync": EventKind.SYNC,
    "copy_call": EventKind.COPY_CALL,
    "launch": EventKind.LAUNCH,
    "runtime": EventKind.RUNTIME,
    "dispatch": EventKind.OP,
}


@dataclass(frozen=True, eq=False)
class Ledger:
    """Time of each interior step by part, in ns. The parts of a step sum exactly to its duration."""

    device: str  # "gpu" or "cpu": the processor that counts as the device
    parts: tuple[Part, ...]  # in display order
    step_ns: Ints  # duration of each interior step
    part_ns: Mapping[str, Ints]  # key -> one value per interior step
    spans: Mapping[str, Spans]  # key -> its time, over all interior steps
    burst: int = 1  # as Steps.burst

    def sum_ns(self, *keys: str) -> Ints:
        """Return the sum of these parts for each interior step, in ns; parts that this device lacks count as 0."""
        return sum((self.part_ns[key] for key in keys if key in self.part_ns), np.zeros_like(self.step_ns))

    def median_ns(self, *keys: str) -> int:
        """Return the median over interior steps (or bursts of steps) of the sum of these parts."""
        return typical_ns(self.sum_ns(*keys), self.burst)

    def typical_frac(self, *keys: str) -> float:
        """Return the share of these parts in a typical step, 0-1, by medians: insensitive to outliers."""
        return self.median_ns(*keys) / max(1, typical_ns(self.step_ns, self.burst))

    def range_ns(self, *keys: str) -> tuple[int, int]:
        """Return the smallest and the largest sum of these parts over interior steps."""
        values = self.sum_ns(*keys)
        return int(values.min()), int(values.max())

    def total_frac(self, *keys: str) -> float:
        """Return the share of these parts in all interior step time, 0-1; the shares of all parts sum to one."""
        return float(self.sum_ns(*keys).sum() / self.step_ns.sum())

    @property
    def busy_frac(self) -> float:
        """Share of all interior step time in which the device worked."""
        return self.total_frac(*(part.key for part in self.parts if part.busy))

    @property
    def idle_frac(self) -> float:
        """Share of all interior step time in which the device was idle."""
        return self.total_frac(*(part.key for part in self.parts if not part.busy))

    def label(self, key: str) -> str:
        """Return the label of a part."""
        return next(part.label for part in self.parts if part.key == key)


def build_ledger(run: Run, steps: Steps) -> Ledger | None:
    """Compute the ledger of the interior steps of a run; None if no step was recorded with events.

    A program that ended by an error, and had computed for a moment only, has no step either.
    """
    if steps.detected_by == "whole run" and run.outcome != "ok" and steps.dur_ns.sum() < _MIN_CRASHED_NS:
        return None
    return ledger_between(run, *steps.interior_bounds_ns, burst=steps.burst)


def ledger_between(run: Run, start: Ints, end: Ints, *, burst: int = 1) -> Ledger | None:
    """Compute the ledger of disjoint spans as if each were a step; None if they are empty, or the run has no events."""
    non_empty = end > start
    start, end = start[non_empty], end[non_empty]
    if not len(start) or not len(run.event_rows):
        return None
    window = union(start, end)
    on_gpu = bool(run.event_rows.is_kind(*DEVICE_KINDS).any())
    layers = _gpu_layers(run, window) if on_gpu else _cpu_layers(run, window)
    parts = gpu_parts(run) if on_gpu else _cpu_parts(run)
    spans = partition(window, layers, rest=parts[-1].key)
    part_ns = {key: covered_ns(spans[key], start, end) for key in spans}
    return Ledger("gpu" if on_gpu else "cpu", parts, end - start, part_ns, spans, burst)


def _cpu_parts(run: Run) -> tuple[Part, ...]:
    """Return the parts of a CPU ledger: communication only if there is any, as most programs are alone."""
    has_collectives = len(cpu_collective_rows(run)) > 0
    return tuple(part for part in CPU_PARTS if has_collectives or part.key != "communication")


def gpu_parts(run: Run) -> tuple[Part, ...]:
    """Return the parts of the ledger of a run with GPU work, in display order."""
    if has_operators(run):
        return GPU_PARTS
    absent = {"dispatch", "glue", "python"}
    if not run.event_rows.is_kind(EventKind.LOADER).any():
        absent.add("loader")
    return (*(part for part in GPU_PARTS if part.key not in absent), HOST_CODE)


@cached_by_run
def main_device(run: Run) -> int:
    """Return the index of the GPU that worked most in this run; 0 if none did."""
    events = run.event_rows
    work = np.flatnonzero(events["kind"] >= min(DEVICE_KINDS))
    busiest = np.bincount(np.maximum(events["device"][work], 0), weights=events["dur_ns"][work], minlength=1)
    return int(busiest.argmax())


def launching_threads(run: Run) -> Ints:
    """Return the threads that explain idle time of the device: those that launch its work, and the main thread."""
    rows = run.event_rows.of_kind(EventKind.LAUNCH, EventKind.COPY_CALL)
    return np.union1d(np.unique(rows["thread"]), [run.main_thread])


def partition(window: Spans, layers: Sequence[tuple[str, Spans]], rest: str) -> dict[str, Spans]:
    """Assign all time of the window to the first layer that covers it, and uncovered time to `rest`."""
    remaining, parts = window, {}
    for key, spans in layers:
        parts[key] = intersect(remaining, spans)
        remaining = subtract(remaining, spans)
    parts[rest] = remaining
    return parts


def host_parts(run: Run, window: Spans, device: str) -> dict[str, Spans]:
    """Partition a window by host activity, whether or not the device worked at the same time."""
    on_gpu = device == "gpu"
    layers = host_layers(run, _host_events(run, window), window) if on_gpu else _cpu_layers(run, window)
    return partition(window, layers, rest=(GPU_PARTS if on_gpu else CPU_PARTS)[-1].key)


def _gpu_layers(run: Run, window: Spans) -> list[tuple[str, Spans]]:
    work = _rows_in_window(run.event_rows.of_kind(*DEVICE_KINDS), window)
    work = work.select(work["device"] == main_device(run))
    return [*device_layers(work), *host_layers(run, _host_events(run, window), window)]


def device_layers(work: Rows) -> list[tuple[str, Spans]]:
    """Return device work by part, in order of priority."""
    kernel = work.is_kind(EventKind.KERNEL)
    matrix = kernel & work.matching(is_matrix)
    return [
        ("matmul", work.select(matrix).spans()),
        ("kernels", work.select(kernel & ~matrix).spans()),
        ("communication", work.of_kind(EventKind.COLLECTIVE).spans()),
        ("copies", work.of_kind(EventKind.MEMCPY, EventKind.MEMSET).spans()),
    ]


def host_layers(run: Run, host: Rows, window: Spans) -> list[tuple[str, Spans]]:
    """Return the activity in these host events by part, in order of priority; other time is Python outside PyTorch."""
    layers = [(key, host.of_kind(kind).spans()) for key, kind in HOST_KINDS.items()]
    return [*layers, ("glue", _between_operators(host, window) if has_operators(run) else no_spans())]


def _cpu_layers(run: Run, window: Spans) -> list[tuple[str, Spans]]:
    host, exchanges = _host_events(run, window), cpu_collectives(run)
    ops = host.of_kind(EventKind.OP)
    return [
        ("loader", host.of_kind(EventKind.LOADER).spans()),
        ("compute", _compute(ops)),
        ("dispatch", ops.spans()),
        *([("communication", _rows_in_window(exchanges, window).spans())] if len(exchanges) else []),
        ("glue", _between_operators(host, window)),
    ]


def _compute(ops: Rows) -> Spans:
    """Return the self time of operators whose self time is at least SMALL_OP_NS."""
    segments = innermost(ops)
    long_enough = segments.per_row_ns(len(ops)) >= SMALL_OP_NS
    return union(segments.start_ns[long_enough[segments.row]], segments.end_ns[long_enough[segments.row]])


def _host_events(run: Run, window: Spans) -> Rows:
    events = run.event_rows
    rows = _rows_in_window(events.select(np.isin(events["thread"], launching_threads(run))), window)
    compiling = run.stall_rows.of_kind(StallKind.COMPILE)
    if not len(compiling):
        return rows
    # Compilation counts as Python code: torch.compile runs operators and records its own phases as operators.
    compiling_ns = covered_ns(compiling.spans(), rows["start_ns"], rows["start_ns"] + rows["dur_ns"])
    return rows.select((rows["kind"] != EventKind.OP.value) | (2 * compiling_ns <= rows["dur_ns"]))


def _between_operators(host: Rows, window: Spans) -> Spans:
    """Return the short gaps between successive PyTorch calls."""
    calls = host.of_kind(EventKind.OP, EventKind.LOADER, *RUNTIME_KINDS).spans()
    if not len(calls.start_ns):
        return no_spans()
    idle = gaps(calls, int(window.start_ns[0]), int(window.end_ns[-1]))
    short = idle.end_ns - idle.start_ns < LONG_GAP_NS
    return Spans(idle.start_ns[short], idle.end_ns[short])


def _rows_in_window(rows: Rows, window: Spans) -> Rows:
    """Return the rows that overlap the time from the first to the last instant of the window."""
    first, last = int(window.start_ns[0]), int(window.end_ns[-1])
    return rows.select((rows["start_ns"] < last) & (rows["start_ns"] + rows["dur_ns"] > first))
