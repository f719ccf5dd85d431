"""Collectives: kind, size, and exposed time (not overlapped by kernels).

A collective lasts from the arrival of this rank until the data is exchanged. On a single rank, waiting for other ranks
and moving data look the same. gpulab.analysis.ranks.stragglers separates the two if all ranks were recorded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from gpulab.analysis.events.cpu_collectives import cpu_collective_rows
from gpulab.analysis.events.device_work import DeviceWork, device_work
from gpulab.analysis.events.per_run import cached_by_ledger
from gpulab.analysis.ranks.parallel_axis import axis_of
from gpulab.analysis.steps.detection import Mask, Steps
from gpulab.analysis.steps.ledger import Ledger, main_device
from gpulab.intervals import Coverage, Ints, Spans, intersect, union
from gpulab.rows import Array
from gpulab.run import Run
from gpulab.run_facts import bucket_sizes
from gpulab.tables import EventKind

# Kinds of collective: the first pattern that matches a name, ignoring case. NCCL also implements all-to-all by send and
# receive; the enclosing operators show which of the two it is.
_KINDS = {
    "all-reduce": r"all_?reduce|cross_device_reduce|one_shot|two_shot",
    "all-gather": r"all_?gather",
    "reduce-scatter": r"reduce_?scatter",
    "all-to-all": r"all_?to_?all|all2all",
    "send-receive": r"send_?recv|send|recv",
    "broadcast": r"broadcast",
    "reduce": r"reduce",
    "gather": r"gather",
    "scatter": r"scatter",
}
KINDS = (*_KINDS, "collective")  # the last: unknown kind
SEND_RECEIVE = "send-receive"
SYNCHRONISING_KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
)  # these end only after every rank has arrived
_EXCHANGES = re.compile(_KINDS["all-to-all"], re.IGNORECASE)
_ITEM_BYTES = {
    **dict.fromkeys(("double", "long", "complexfloat"), 8),
    **dict.fromkeys(("float", "int", "uint32"), 4),
    **dict.fromkeys(("half", "bfloat16", "short", "uint16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "float8_e4m3fn", "float8_e5m2"), 1),
}


@cache
def collective_kind(name: str) -> str:
    """Return the kind of a collective by its name: that of the backend operation, or of the kernel."""
    lower = name.lower()
    return next((kind for kind, pattern in _KINDS.items() if re.search(pattern, lower)), "collective")


@dataclass(frozen=True, eq=False)
class Collectives:
    """The collectives of the busiest GPU in order of time, as columns of equal length."""

    event: Ints  # row in the events table
    start_ns: Ints
    dur_ns: Ints
    exposed_ns: Ints  # part of it in interior steps and not overlapped by a kernel
    kind: Ints  # an index into KINDS
    bytes: Ints  # bytes that one rank sends or receives, whichever is more; -1 if unknown
    group_size: Ints  # -1 if unknown
    sequence: Ints  # number within its group; -1 if unknown
    group: Array  # code of the group's name in `groups`; -1 if unknown
    groups: tuple[str, ...]
    description: Array  # code of the group's description in `descriptions`; -1 if unknown
    descriptions: tuple[str, ...]
    float32: bool  # some elements are float32, or all types are unknown
    interior: Mask  # starts in an interior step

    def __len__(self) -> int:
        return len(self.event)

    def kind_mask(self, *kinds: str) -> Mask:
        """Return a mask of the collectives of these kinds."""
        mask: Mask = np.isin(self.kind, [KINDS.index(kind) for kind in kinds])
        return mask


@cached_by_ledger
def collectives(run: Run, steps: Steps, ledger: Ledger) -> Collectives | None:
    """Return the collectives of the busiest GPU, or of the CPU if that is the device; None if there are none."""
    if ledger.device == "gpu":
        work = device_work(run, main_device(run)).of_kind(EventKind.COLLECTIVE)
    else:
        work = DeviceWork(run.event_rows, cpu_collective_rows(run))
    if not len(work):
        return None
    start, dur = work.start_ns, np.asarray(work["dur_ns"], np.int64)
    side_rows = run.collective_rows
    details = {
        name: side_rows.per_event(name, len(run.event_rows))[work.event_rows]
        for name in (
            *("collective", "dtype", "elements_in", "elements_out"),
            *("group", "group_description", "group_size", "sequence"),
        )
    }
    sizes, float32 = _sizes(run, details)
    kind = _fill_unknown_kinds(_kinds(run, work["name"], details["collective"]), dur)
    if (sizes < 0).all():
        sizes = _bucket_sizes(run, steps, kind, start)
    return Collectives(
        event=work.event_rows,
        start_ns=start,
        dur_ns=dur,
        exposed_ns=_exposed_once(ledger.spans["communication"], start, start + dur),
        kind=kind,
        bytes=sizes,
        group_size=details["group_size"].astype(np.int64),
        sequence=details["sequence"],
        group=details["group"],
        groups=side_rows.text("group").vocabulary,
        description=details["group_description"],
        descriptions=side_rows.text("group_description").vocabulary,
        float32=float32,
        interior=steps.interior_mask(start),
    )


def _exposed_once(exposed: Spans, start_ns: Ints, end_ns: Ints) -> Ints:
    """Return the exposed time of each collective; time that several share, as on two threads, counts for the first."""
    earlier_end = np.maximum.accumulate(np.append(start_ns[:1], end_ns[:-1]))
    return Coverage.of(exposed).covered_ns(np.minimum(np.maximum(start_ns, earlier_end), end_ns), end_ns)


def _kinds(run: Run, names: Array, backend_codes: Array) -> Ints:
    """Return the kind of each collective, by the name of the backend operation, else by the kernel name."""
    events, operations = run.event_rows.text("name"), run.collective_rows.text("collective")
    by_kernel = _kind_indices(events.vocabulary)[names]
    by_backend = np.append(_kind_indices(operations.vocabulary), len(KINDS) - 1)[backend_codes]
    kind = np.where((backend_codes >= 0) & (by_backend < len(KINDS) - 1), by_backend, by_kernel)
    exchange = KINDS.index(SEND_RECEIVE)
    if (kind == exchange).any() and any(_EXCHANGES.search(word) for word in events.vocabulary):
        kind = np.where(kind == exchange, KINDS.index("all-to-all"), kind)
    return np.asarray(kind, np.int64)


def _fill_unknown_kinds(kind: Ints, dur_ns: Ints) -> Ints:
    """Replace unknown kinds (launched before the recording) by the known kind with most time."""
    is_known = kind < len(KINDS) - 1
    if is_known.all() or not is_known.any():
        return kind
    main_kind = int(np.bincount(kind[is_known], weights=dur_ns[is_known]).argmax())
    return np.where(is_known, kind, main_kind)


def _kind_indices(names: tuple[str, ...]) -> Ints:
    return np.array([KINDS.index(collective_kind(word)) for word in names], np.int64)


def _sizes(run: Run, details: dict[str, Array]) -> tuple[Ints, bool]:
    """Return the bytes that each moves per rank, and whether some of the data is float32."""
    dtypes = run.collective_rows.text("dtype").vocabulary
    item_bytes = np.array([*(_ITEM_BYTES.get(word.lower(), -1) for word in dtypes), -1], np.int64)[details["dtype"]]
    elements = np.maximum(details["elements_in"], details["elements_out"])
    is_known = (elements >= 0) & (item_bytes > 0)
    is_float32 = np.array([*(word.lower() == "float" for word in dtypes), False], bool)[details["dtype"]]
    return np.where(is_known, elements * item_bytes, -1), bool(is_float32.any() or not is_known.any())


def _bucket_sizes(run: Run, steps: Steps, kind: Ints, start_ns: Ints) -> Ints:
    """Return the sizes of the all-reduces that are DDP's buckets, as recorded with the run; -1 for all others.

    A step with more or fewer all-reduces than buckets is left out.
    """
    sizes = np.full(len(kind), -1, np.int64)
    buckets = np.array(bucket_sizes(run), np.int64)
    reduces = np.flatnonzero(kind == KINDS.index("all-reduce"))
    if not len(buckets) or not len(reduces):
        return sizes
    step = np.searchsorted(steps.start_ns, start_ns[reduces], side="right")
    for number in np.unique(step).tolist():
        of_step = reduces[step == number]
        if len(of_step) == len(buckets):
            sizes[of_step] = buckets
    return sizes


@dataclass(frozen=True, kw_only=True)
class CollectiveGroup:
    """What is known of the process groups in which a kind of collectives spends most of its exposed time."""

    axis: str = ""  # what they are for, as in parallel_axis; "" if unknown
    ranks: int | None = None  # that take part in each


@dataclass(frozen=True, kw_only=True)
class ExposedCommunication:
    """Exposed communication per interior step."""

    exposed_ns: int  # per step, mean
    hidden_frac: float  # share of all communication overlapped by kernels
    by_kind: tuple[tuple[str, int], ...]  # kind and exposed ns per step, most first
    groups: Mapping[str, CollectiveGroup]  # by kind: the process groups with most of its exposed time
    per_step: float  # collectives per step
    float32: bool
    rate_bytes_per_s: float | None  # transfer rate of the kind with most time; None if sizes are unknown
    tail_ns: int  # part of exposed_ns in the last all-reduce of each step
    tail_bytes: int | None  # size of that all-reduce
    spans: Spans  # when, over all interior steps

    def group_of(self, kind: str) -> CollectiveGroup:
        """Return the process groups of a kind of collectives; of a kind that does not occur, nothing is known."""
        return self.groups.get(kind, CollectiveGroup())


def exposed_collective_time(run: Run, steps: Steps, ledger: Ledger) -> ExposedCommunication | None:
    """Compute the exposed communication in interior steps; None if there is none."""
    all_collectives = collectives(run, steps, ledger)
    if all_collectives is None or not all_collectives.exposed_ns.any():
        return None
    spans, step_count = ledger.spans["communication"], len(ledger.step_ns)
    start, end = all_collectives.start_ns, all_collectives.start_ns + all_collectives.dur_ns
    by_kind = {}
    for index in np.unique(all_collectives.kind).tolist():
        of_kind = all_collectives.kind == index
        by_kind[KINDS[index]] = intersect(union(start[of_kind], end[of_kind]), spans).total_ns // step_count
    ranked = tuple(sorted(by_kind.items(), key=lambda item: -item[1]))
    tail_ns, tail_bytes = _tail(all_collectives, steps, step_count)
    in_interior = all_collectives.interior
    total_ns = max(1, union(start[in_interior], end[in_interior]).total_ns)
    return ExposedCommunication(
        exposed_ns=spans.total_ns // step_count,
        hidden_frac=max(0.0, 1 - int(all_collectives.exposed_ns[in_interior].sum()) / total_ns),
        by_kind=ranked,
        groups={kind: _group(all_collectives, all_collectives.kind_mask(kind)) for kind in by_kind},
        per_step=float(in_interior.sum() / step_count),
        float32=all_collectives.float32,
        rate_bytes_per_s=_rate(all_collectives, ranked[0][0]),
        tail_ns=tail_ns,
        tail_bytes=tail_bytes,
        spans=spans,
    )


def _group(all_collectives: Collectives, mask: Mask) -> CollectiveGroup:
    exposed_ns = all_collectives.exposed_ns[mask]
    code = _with_most_time(all_collectives.description[mask], exposed_ns)
    ranks = _with_most_time(all_collectives.group_size[mask], exposed_ns)
    return CollectiveGroup(
        axis="" if code < 0 else axis_of(all_collectives.descriptions[code]), ranks=ranks if ranks > 0 else None
    )


def _with_most_time(values: Array, time_ns: Ints) -> int:
    """Return the value to which most of the time belongs; values that repeat have the sum of their times."""
    distinct, of_value = np.unique(values, return_inverse=True)
    return int(distinct[np.bincount(of_value.reshape(-1), weights=time_ns).argmax()])


def _tail(all_collectives: Collectives, steps: Steps, step_count: int) -> tuple[int, int | None]:
    """Return exposed time per step and size of the last all-reduce of each step."""
    reduce = np.flatnonzero(all_collectives.kind_mask("all-reduce") & all_collectives.interior)
    if not len(reduce):
        return 0, None
    step = np.searchsorted(steps.start_ns, all_collectives.start_ns[reduce], side="right")
    last = reduce[np.append(step[1:] != step[:-1], True)]
    sizes = all_collectives.bytes[last]
    known_sizes = sizes[sizes >= 0]
    return int(all_collectives.exposed_ns[last].sum()) // step_count, int(np.median(known_sizes)) if len(
        known_sizes
    ) else None


def _rate(all_collectives: Collectives, kind: str) -> float | None:
    """Return bytes per second that each rank sends by the ring algorithm, over collectives of at least median size."""
    mask = all_collectives.kind_mask(kind) & (all_collectives.bytes > 0) & (all_collectives.dur_ns > 0)
    if not mask.any():
        return None
    sizes, dur, ranks = all_collectives.bytes[mask], all_collectives.dur_ns[mask], all_collectives.group_size[mask]
    ring_frac = np.where(ranks > 1, (ranks - 1) / np.maximum(ranks, 1), 1.0)
    large = sizes >= np.median(sizes)
    sent_bytes = sizes * ring_frac * (2 if kind == "all-reduce" else 1)
    return float(sent_bytes[large].sum() / dur[large].sum() * 1e9)


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """All-reduce buckets of a step, and the exposed time of small ones."""

    per_step: float  # number of all-reduces per step
    small_per_step: float  # those under 1 MiB
    median_bytes: int  # median size of all
    total_bytes: int  # per step
    small_exposed_ns: int  # per step
    small_ns: int  # per step: their time in interior steps, overlapped or not
    spans: Spans  # the exposed time of the small ones


SMALL_BYTES = 1 << 20  # size of DDP's first bucket; the time of smaller collectives is mostly latency


def all_reduce_buckets(run: Run, steps: Steps, ledger: Ledger) -> Buckets | None:
    """Compute the all-reduce buckets of the interior steps; None if there are none or their sizes are unknown."""
    all_collectives = collectives(run, steps, ledger)
    if all_collectives is None:
        return None
    mask = all_collectives.kind_mask("all-reduce") & all_collectives.interior & (all_collectives.bytes >= 0)
    if not mask.any():
        return None
    step_count = len(ledger.step_ns)
    small = mask & (all_collectives.bytes < SMALL_BYTES)
    ends = all_collectives.start_ns + all_collectives.dur_ns
    small_spans = union(all_collectives.start_ns[small], ends[small])
    spans = intersect(small_spans, ledger.spans["communication"])
    return Buckets(
        per_step=float(mask.sum() / step_count),
        small_per_step=float(small.sum() / step_count),
        median_bytes=int(np.median(all_collectives.bytes[mask])),
        total_bytes=int(all_collectives.bytes[mask].sum()) // step_count,
        small_exposed_ns=spans.total_ns // step_count,
        small_ns=small_spans.total_ns // step_count,
        spans=spans,
    )
