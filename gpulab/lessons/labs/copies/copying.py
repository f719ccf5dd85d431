"""What a recorded run tells of its copies, what ways to the GPU cost by arithmetic, and a dataset of ready batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.analysis.copies.table import direction, host_memory
from gpulab.analysis.steps.detection import Mask
from gpulab.lessons.labs.host.operators import Called, watching
from gpulab.run import Run
from gpulab.tables import Kind

if TYPE_CHECKING:
    from torch import Tensor

# What copies a tensor into pinned memory, by version of PyTorch, outermost first; and on a virtual GPU, where it is an
# ordinary copy of the host's.
PINNING = ("aten::pin_memory", "aten::_pin_memory")
PINNING_VIRTUAL = ("aten::clone",)
READS = "aten::_local_scalar_dense"  # what .item(), float(), print() and `if` on a tensor of the GPU end in


@dataclass(frozen=True, kw_only=True)
class Copied:
    """One copy between host and GPU."""

    bytes: int
    to_device: bool
    pinned: bool
    held_ns: int  # the call, with the wait right behind it, kept the host so long
    copying_ns: int  # the copy itself took so long on the GPU
    arrived_ns: int  # from the call to the last byte


def copied(run: Run, size: int | None = None) -> tuple[Copied, ...]:
    """The copies of a run in the order of their calls; `size`: only those of so many bytes."""
    events = run.event_rows
    kind, start, end = events["kind"], events["start_ns"], events["start_ns"] + events["dur_ns"]
    names = events.words("name").to_list()
    calls = np.flatnonzero(kind == Kind.COPY_CALL)
    calls = calls[np.argsort(start[calls], kind="stable")]
    work = {int(events["correlation"][row]): int(row) for row in np.flatnonzero(kind == Kind.MEMCPY)}
    ops = np.flatnonzero((kind == Kind.OP) & _named(run, "aten::copy_", READS))
    ops = ops[np.argsort(start[ops], kind="stable")]
    found = []
    for call in calls.tolist():
        row = work.get(int(events["correlation"][call]))
        way = direction(names[row]) if row is not None else None
        if row is None or way not in ("HtoD", "DtoH") or (size is not None and events["bytes"][row] != size):
            continue
        place = int(np.searchsorted(start[ops], start[call], side="right")) - 1
        inside = place >= 0 and end[ops[place]] >= end[call] and start[ops[place]] <= start[call]
        around = ops[place] if inside else call  # the operator that asked for it, which also waits
        found.append(
            Copied(
                bytes=int(events["bytes"][row]),
                to_device=way == "HtoD",
                pinned=host_memory(names[row]) == "pinned",
                held_ns=int(end[around] - start[around]),
                copying_ns=int(events["dur_ns"][row]),
                arrived_ns=int(end[row] - start[around]),
            )
        )
    return tuple(found)


def curve(run: Run, pinned: bool) -> dict[int, float]:
    """Bytes to GB/s of the copies to the GPU, from the call to the last byte: the median of each size, smallest first.

    A lone copy is meant: where others are under way, a call also waits for its turn.
    """
    by_size: dict[int, list[int]] = {}
    for each in copied(run):
        if each.to_device and each.pinned == pinned:
            by_size.setdefault(each.bytes, []).append(each.arrived_ns)
    return {size: size / median(by_size[size]) for size in sorted(by_size)}  # bytes per ns are GB per s


def knee_bytes(rates: dict[int, float], frac: float = 0.5) -> int:
    """The smallest size that reaches this share of the best rate."""
    best = max(rates.values())
    return next(size for size in sorted(rates) if rates[size] >= frac * best)


@dataclass(frozen=True, kw_only=True)
class Moved:
    """What one batch costs on its way to the GPU, as the median of a run's batches, in ms."""

    pinning_ms: float  # the main thread copies it into pinned memory
    held_ms: float  # the main thread is held by the copy's call
    copying_ms: float  # the link is at work

    @property
    def there_ms(self) -> float:
        """From the loop's first line about it to the last byte: the link works inside the call, or after it."""
        return self.pinning_ms + max(self.held_ms, self.copying_ms)


def moved(run: Run, size: int) -> Moved:
    """How batches of so many bytes came to the GPU in a run."""
    batches = [each for each in copied(run, size) if each.to_device]
    pins_ns = _pins_ns(run)
    pinning_ns = median(pins_ns) if len(pins_ns) >= len(batches) else 0.0  # else it was not the batches that it pinned
    return Moved(
        pinning_ms=pinning_ns / 1e6,
        held_ms=median(each.held_ns for each in batches) / 1e6,
        copying_ms=median(each.copying_ns for each in batches) / 1e6,
    )


def _pins_ns(run: Run) -> list[int]:
    """How long the main thread took for each tensor that it pinned."""
    events = run.event_rows
    mine = (events["kind"] == Kind.OP) & (events["thread"] == run.main_thread)
    for name in PINNING_VIRTUAL if run.source.how == "virtual" else PINNING:
        each_ns: list[int] = events["dur_ns"][mine & _named(run, name)].tolist()
        if each_ns:
            return each_ns
    return []


@dataclass
class Counter:
    """How often something was called so far."""

    calls: int = 0


@contextmanager
def counted(operator: str) -> Iterator[Counter]:
    """Count the calls of an operator, as "aten::_local_scalar_dense", within: on the CPU as on a GPU."""
    count = Counter()

    def add(called: Called) -> None:
        count.calls += called.schema == operator

    with watching(add):
        yield count


def waits(run: Run) -> dict[str, int]:
    """How often the host waited for the GPU inside each named range (torch.profiler.record_function)."""
    events = run.event_rows
    names = events.words("name").to_list()
    sync = events["start_ns"][events["kind"] == Kind.SYNC]
    told: dict[str, int] = {}
    for row in np.flatnonzero((events["kind"] == Kind.ANNOTATION) & (events["device"] < 0)).tolist():
        start = events["start_ns"][row]
        inside = (sync >= start) & (sync < start + events["dur_ns"][row])
        told[str(names[row])] = told.get(str(names[row]), 0) + int(inside.sum())
    return told


def range_ms(run: Run, name: str) -> float:
    """How long the host was inside a named range; 0 where there is none."""
    events = run.event_rows
    mine = (events["kind"] == Kind.ANNOTATION) & (events["device"] < 0) & _named(run, name)
    return float(events["dur_ns"][mine].sum()) / 1e6


def _named(run: Run, *names: str) -> Mask:
    return run.event_rows.matching(names.__contains__)


ROUTES = ("plain", "fresh", "kept", "ahead")
LOCKING_BYTES_PER_S = 2**29 / 61e-3  # cudaMallocHost of 512 MiB in 61 ms: University of Virginia, published
LINK_BYTES_PER_S = 50e9  # large pinned copies over PCIe 5 x16: four fifths of its 63 GB/s


def route_ms(size: int, route: str, host_bytes_per_s: float, link_bytes_per_s: float = LINK_BYTES_PER_S) -> float:
    """What the loop waits until a batch of so many bytes is on the GPU, by arithmetic.

    "plain": x.to(): the driver copies it piece by piece into pinned memory of its own, and each piece travels while
    the next is copied, so the slower of the two decides. "fresh": x.pin_memory().to(): pages are locked, then all is
    copied, then all travels. "kept": the same into memory that was locked before, as PyTorch's host allocator gives
    it from the second batch on. "ahead": pinned before the loop asked for it, by the loader's thread.
    """
    copying, travelling, locking = size / host_bytes_per_s, size / link_bytes_per_s, size / LOCKING_BYTES_PER_S
    taken = {
        "plain": max(copying, travelling),
        "fresh": locking + copying + travelling,
        "kept": copying + travelling,
        "ahead": travelling,
    }
    return 1e3 * taken[route]


def makespan_ms(copies_ms: Sequence[float], computes_ms: Sequence[float], ahead: bool) -> float:
    """How long all steps take: each computes once its batch is copied.

    `ahead`: copies have a stream of their own, and one batch may lie ready; else each copy waits for the compute
    before it. The GPU copies one thing at a time, and computes one.
    """
    copied_at, computed_at, begun_at = 0.0, 0.0, 0.0
    for copy, compute in zip(copies_ms, computes_ms, strict=True):
        # Ahead, the copy of a batch is called for when the batch before it begins to be computed on.
        copied_at = (max(copied_at, begun_at) if ahead else max(copied_at, computed_at)) + copy
        begun_at = max(copied_at, computed_at)
        computed_at = begun_at + compute
    return computed_at


def host_copy_gb_per_s(size: int, times: int = 9) -> float:
    """What one core of this machine reaches when it copies so many bytes from memory to memory: the best of a few."""
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    spent_ns = []
    for _ in range(times):
        began = perf_counter_ns()
        np.copyto(target, source)
        spent_ns.append(perf_counter_ns() - began)
    return size / max(1, min(spent_ns))


class Ready:
    """A dataset whose items are whole batches, each the same tensor: for DataLoader(..., batch_size=None)."""

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
