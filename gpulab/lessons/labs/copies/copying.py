"""Copies of a recorded run, the calculated cost of each route to the GPU, and a dataset of ready batches."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpulab.analysis.copies.copy_table import copy_direction, host_memory
from gpulab.analysis.steps.detection import Mask
from gpulab.lessons.labs.host.operators import OperatorCall, observe_operators
from gpulab.run import Run
from gpulab.tables import EventKind

if TYPE_CHECKING:
    from torch import Tensor

# Operators that copy a tensor into pinned memory, by version of PyTorch, outermost first; a virtual GPU has an ordinary
# host copy instead.
PINNING_OPS = ("aten::pin_memory", "aten::_pin_memory")
VIRTUAL_PINNING_OPS = ("aten::clone",)
SCALAR_READ_OP = "aten::_local_scalar_dense"  # the operator behind .item(), float(), print() and `if` on a GPU tensor


@dataclass(frozen=True, kw_only=True)
class HostDeviceCopy:
    """One copy between host and GPU."""

    bytes: int
    to_device: bool
    pinned: bool
    blocked_ns: int  # host time of the call and of the synchronisation right after it
    transfer_ns: int  # duration of the copy on the GPU
    latency_ns: int  # from the call to the last byte


def host_device_copies(run: Run, size: int | None = None) -> tuple[HostDeviceCopy, ...]:
    """Return the host-device copies of a run in call order; `size`: only copies of this many bytes."""
    events = run.event_rows
    kind, start, end = events["kind"], events["start_ns"], events["start_ns"] + events["dur_ns"]
    names = events.text("name").to_list()
    calls = np.flatnonzero(kind == EventKind.COPY_CALL.value)
    calls = calls[np.argsort(start[calls], kind="stable")]
    work = {int(events["correlation"][row]): int(row) for row in np.flatnonzero(kind == EventKind.MEMCPY.value)}
    ops = np.flatnonzero((kind == EventKind.OP.value) & _name_mask(run, "aten::copy_", SCALAR_READ_OP))
    ops = ops[np.argsort(start[ops], kind="stable")]
    copies = []
    for call in calls.tolist():
        row = work.get(int(events["correlation"][call]))
        direction = copy_direction(names[row]) if row is not None else None
        if row is None or direction not in ("HtoD", "DtoH") or (size is not None and events["bytes"][row] != size):
            continue
        index = int(np.searchsorted(start[ops], start[call], side="right")) - 1
        inside = index >= 0 and end[ops[index]] >= end[call] and start[ops[index]] <= start[call]
        outer = ops[index] if inside else call  # the operator that called the copy, which also waits
        copies.append(
            HostDeviceCopy(
                bytes=int(events["bytes"][row]),
                to_device=direction == "HtoD",
                pinned=host_memory(names[row]) == "pinned",
                blocked_ns=int(end[outer] - start[outer]),
                transfer_ns=int(events["dur_ns"][row]),
                latency_ns=int(end[row] - start[outer]),
            )
        )
    return tuple(copies)


def bandwidth_by_size(run: Run, pinned: bool) -> dict[int, float]:
    """Return the median bandwidth of H2D copies by size: bytes -> GB/s, from the call to the last byte, smallest first.

    Meant for isolated copies: a copy that queues behind others includes the time in the queue.
    """
    by_size: dict[int, list[int]] = {}
    for copy in host_device_copies(run):
        if copy.to_device and copy.pinned == pinned:
            by_size.setdefault(copy.bytes, []).append(copy.latency_ns)
    return {size: size / median(by_size[size]) for size in sorted(by_size)}  # bytes per ns are GB per s


def knee_bytes(rates: dict[int, float], frac: float = 0.5) -> int:
    """Return the smallest size that reaches this fraction of the best bandwidth."""
    best = max(rates.values())
    return next(size for size in sorted(rates) if rates[size] >= frac * best)


@dataclass(frozen=True, kw_only=True)
class BatchCopyCost:
    """Cost of copying one batch to the GPU: medians over the batches of a run, in ms."""

    pinning_ms: float  # the main thread copies the batch into pinned memory
    blocked_ms: float  # the copy call blocks the main thread
    transfer_ms: float  # the transfer over the link

    @property
    def total_ms(self) -> float:
        """From the start of pinning to the last byte: the transfer happens during the call, or after it."""
        return self.pinning_ms + max(self.blocked_ms, self.transfer_ms)


def batch_copy_cost(run: Run, size: int) -> BatchCopyCost:
    """Measure the H2D copies of batches of `size` bytes in a run."""
    batches = [each for each in host_device_copies(run, size) if each.to_device]
    pins_ns = _pins_ns(run)
    pinning_ns = median(pins_ns) if len(pins_ns) >= len(batches) else 0.0  # fewer: it did not pin the batches
    return BatchCopyCost(
        pinning_ms=pinning_ns / 1e6,
        blocked_ms=median(each.blocked_ns for each in batches) / 1e6,
        transfer_ms=median(each.transfer_ns for each in batches) / 1e6,
    )


def _pins_ns(run: Run) -> list[int]:
    """Return the main thread's time for each tensor that it pinned, in ns."""
    events = run.event_rows
    main_thread_ops = events.is_kind(EventKind.OP) & (events["thread"] == run.main_thread)
    for name in VIRTUAL_PINNING_OPS if run.source.how == "virtual" else PINNING_OPS:
        durations_ns: list[int] = events["dur_ns"][main_thread_ops & _name_mask(run, name)].tolist()
        if durations_ns:
            return durations_ns
    return []


@dataclass
class CallCount:
    """Number of calls so far."""

    calls: int = 0


@contextmanager
def count_calls(operator: str) -> Iterator[CallCount]:
    """Count the calls of an operator such as "aten::_local_scalar_dense" in this block, on CPU or GPU."""
    count = CallCount()

    def add(call: OperatorCall) -> None:
        count.calls += call.schema == operator

    with observe_operators(add):
        yield count


def syncs_by_range(run: Run) -> dict[str, int]:
    """Count the GPU synchronisations inside each named range (torch.profiler.record_function)."""
    events = run.event_rows
    names = events.text("name").to_list()
    sync = events["start_ns"][events.is_kind(EventKind.SYNC)]
    counts: dict[str, int] = {}
    for row in np.flatnonzero(events.is_kind(EventKind.ANNOTATION) & (events["device"] < 0)).tolist():
        start = events["start_ns"][row]
        inside = (sync >= start) & (sync < start + events["dur_ns"][row])
        counts[str(names[row])] = counts.get(str(names[row]), 0) + int(inside.sum())
    return counts


def range_ms(run: Run, name: str) -> float:
    """Return the host time inside a named range, in ms; 0 if there is no such range."""
    events = run.event_rows
    in_range = events.is_kind(EventKind.ANNOTATION) & (events["device"] < 0) & _name_mask(run, name)
    return float(events["dur_ns"][in_range].sum()) / 1e6


def _name_mask(run: Run, *names: str) -> Mask:
    return run.event_rows.matching(names.__contains__)


ROUTES = ("plain", "fresh", "kept", "ahead")
LOCKING_BYTES_PER_S = 2**29 / 61e-3  # cudaMallocHost of 512 MiB in 61 ms: University of Virginia, published
LINK_BYTES_PER_S = 50e9  # large pinned copies over PCIe 5 x16: four fifths of its 63 GB/s


def route_ms(size: int, route: str, host_bytes_per_s: float, link_bytes_per_s: float = LINK_BYTES_PER_S) -> float:
    """Calculate how long the loop waits until a batch of `size` bytes is on the GPU.

    "plain": x.to(): the driver copies the batch in chunks into its own pinned memory and transfers one chunk while it
    copies the next, so the slower of the two decides. "fresh": x.pin_memory().to(): pages are locked, all is copied,
    then all is transferred. "kept": the same with memory that is already locked, as PyTorch's host allocator reuses it
    from the second batch on. "ahead": the DataLoader's thread pinned the batch before the loop asked for it.
    """
    copying, travelling, locking = size / host_bytes_per_s, size / link_bytes_per_s, size / LOCKING_BYTES_PER_S
    waits_s = {
        "plain": max(copying, travelling),
        "fresh": locking + copying + travelling,
        "kept": copying + travelling,
        "ahead": travelling,
    }
    return 1e3 * waits_s[route]


def makespan_ms(copies_ms: Sequence[float], computes_ms: Sequence[float], ahead: bool) -> float:
    """Calculate the total time of all steps: each computes after its batch is copied.

    `ahead`: copies run in a separate stream, and one batch is prefetched; else each copy waits for the compute before
    it. The GPU runs one copy and one computation at a time.
    """
    copy_end, compute_end, compute_start = 0.0, 0.0, 0.0
    for copy, compute in zip(copies_ms, computes_ms, strict=True):
        # With prefetch, the copy of a batch starts when the computation on the previous batch starts.
        copy_end = (max(copy_end, compute_start) if ahead else max(copy_end, compute_end)) + copy
        compute_start = max(copy_end, compute_end)
        compute_end = compute_start + compute
    return compute_end


def host_copy_gb_per_s(size: int, times: int = 9) -> float:
    """Measure the memory-to-memory copy rate of one core of this machine in GB/s: the best of `times` copies."""
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    times_ns = []
    for _ in range(times):
        start = perf_counter_ns()
        np.copyto(target, source)
        times_ns.append(perf_counter_ns() - start)
    return size / max(1, min(times_ns))


def fresh_memory(size: int) -> npt.NDArray[np.uint8]:
    """Return memory of `size` bytes that nobody has written to: it gets its pages at the first write."""
    return np.frombuffer(mmap.mmap(-1, size), np.uint8)  # an allocator would return memory that it has kept


def fastest_copy_ms(targets: Sequence[npt.NDArray[np.uint8]]) -> float:
    """Copy data into each target in turn, on one core, and return the time of the fastest copy in ms."""
    source = np.ones(targets[0].size, np.uint8)
    times_ns = []
    for target in targets:
        start = perf_counter_ns()
        np.copyto(target, source)
        times_ns.append(perf_counter_ns() - start)
    return min(times_ns) / 1e6


class ReadyBatches:
    """A dataset whose items are complete batches, always the same tensor: for DataLoader(..., batch_size=None)."""

    def __init__(self, count: int, rows: int, columns: int) -> None:
        import torch

        self.batch: Tensor = torch.ones(rows, columns)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return self.batch
