"""Collectives: what kind each is, how much it moves, and how much of it nothing hides.

A collective lasts from the moment this rank arrives to the moment all have what they need: on one rank, waiting for
another and moving data look alike. gpulab.analysis.ranks.stragglers tells them apart where all ranks were recorded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import numpy as np

from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.steps.detection import Mask, Steps
from gpulab.analysis.steps.ledger import Ledger, main_device
from gpulab.intervals import Coverage, Ints, Spans, intersect, union
from gpulab.rows import Array
from gpulab.run import Run
from gpulab.tables import Kind

# Kinds of collective; the first that a name matches, without regard to case. Send and receive are also how NCCL
# exchanges all with all: which of the two it is, the operators around it tell.
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
KINDS = (*_KINDS, "collective")  # the last: its name does not tell
TOGETHER = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")  # none ends before every rank has arrived
_EXCHANGES = re.compile(_KINDS["all-to-all"], re.IGNORECASE)
_ITEM_BYTES = {
    **dict.fromkeys(("double", "long", "complexfloat"), 8),
    **dict.fromkeys(("float", "int", "uint32"), 4),
    **dict.fromkeys(("half", "bfloat16", "short", "uint16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "float8_e4m3fn", "float8_e5m2"), 1),
}


@cache
def kind_of(name: str) -> str:
    """What kind of collective one of this name is: an operation as the backend names it, or a kernel."""
    lower = name.lower()
    return next((kind for kind, pattern in _KINDS.items() if re.search(pattern, lower)), "collective")


@dataclass(frozen=True, eq=False)
class Collectives:
    """The collectives of the GPU that did most work, in order of time; columns of equal length."""

    event: Ints  # which event each is
    start_ns: Ints
    dur_ns: Ints
    exposed_ns: Ints  # of it, inside interior steps and with no kernel beside it
    kind: Ints  # an index into KINDS
    bytes: Ints  # what one rank gives, or gets, whichever is more; -1 if not told
    group_size: Ints  # -1 if not told
    sequence: Ints  # which of its group it is; -1 if not told
    group: Array  # code of the group's name in `groups`; -1 if not told
    groups: tuple[str, ...]
    float32: bool  # elements of four bytes are among those that were told, or nothing was told
    interior: Mask  # it begins in an interior step

    def __len__(self) -> int:
        return len(self.event)

    def is_kind(self, *kinds: str) -> Mask:
        """Which of them are of one of these kinds."""
        mask: Mask = np.isin(self.kind, [KINDS.index(kind) for kind in kinds])
        return mask


def collectives(run: Run, steps: Steps, ledger: Ledger) -> Collectives | None:
    """Every collective of the GPU that did most work; None where there is none."""
    if ledger.device != "gpu":
        return None
    work = device_work(run, main_device(run)).of_kind(Kind.COLLECTIVE)
    if not len(work):
        return None
    start, dur = work.start_ns, np.asarray(work["dur_ns"], np.int64)
    told = run.collective_rows
    beside = {
        name: told.spread(name, len(run.event_rows))[work.event]
        for name in ("collective", "dtype", "elements_in", "elements_out", "group", "group_size", "sequence")
    }
    sizes, float32 = _sizes(run, beside)
    return Collectives(
        event=work.event,
        start_ns=start,
        dur_ns=dur,
        exposed_ns=Coverage.of(ledger.spans["communication"]).within(start, start + dur),
        kind=_likely(_kinds(run, work["name"], beside["collective"]), dur),
        bytes=sizes,
        group_size=beside["group_size"].astype(np.int64),
        sequence=beside["sequence"],
        group=beside["group"],
        groups=told.words("group").vocabulary,
        float32=float32,
        interior=steps.in_interior(start),
    )


def _kinds(run: Run, names: Array, told: Array) -> Ints:
    """The kind of each, by what the backend calls it, else by its kernel's name."""
    events, spoken = run.event_rows.words("name"), run.collective_rows.words("collective")
    by_kernel = _indices(events.vocabulary)[names]
    by_backend = np.append(_indices(spoken.vocabulary), len(KINDS) - 1)[told]
    kind = np.where((told >= 0) & (by_backend < len(KINDS) - 1), by_backend, by_kernel)
    exchange = KINDS.index("send-receive")
    if (kind == exchange).any() and any(_EXCHANGES.search(word) for word in events.vocabulary):
        kind = np.where(kind == exchange, KINDS.index("all-to-all"), kind)
    return np.asarray(kind, np.int64)


def _likely(kind: Ints, dur_ns: Ints) -> Ints:
    """Where the name does not tell, the kind that most of the told time is of: what ran before recording began."""
    told = kind < len(KINDS) - 1
    if told.all() or not told.any():
        return kind
    most = int(np.bincount(kind[told], weights=dur_ns[told]).argmax())
    return np.where(told, kind, most)


def _indices(words: tuple[str, ...]) -> Ints:
    return np.array([KINDS.index(kind_of(word)) for word in words], np.int64)


def _sizes(run: Run, beside: dict[str, Array]) -> tuple[Ints, bool]:
    """How many bytes each moves per rank, and whether some of them are numbers of 32 bits."""
    dtypes = run.collective_rows.words("dtype").vocabulary
    item = np.array([*(_ITEM_BYTES.get(word.lower(), -1) for word in dtypes), -1], np.int64)[beside["dtype"]]
    elements = np.maximum(beside["elements_in"], beside["elements_out"])
    known = (elements >= 0) & (item > 0)
    floats = np.array([*(word.lower() == "float" for word in dtypes), False], bool)[beside["dtype"]]
    return np.where(known, elements * item, -1), bool(floats.any() or not known.any())


@dataclass(frozen=True, kw_only=True)
class Exposed:
    """Communication that nothing hides, per interior step."""

    exposed_ns: int  # per step, mean
    hidden_frac: float  # share of all communication that a kernel ran beside
    by_kind: tuple[tuple[str, int], ...]  # kind -> exposed ns per step, most first
    per_step: float  # collectives per step
    float32: bool
    rate_bytes_per_s: float | None  # at which the kind with most time moves its data; None where sizes are not told
    tail_ns: int  # of it, in the last all-reduce of each step
    tail_bytes: int | None  # its size
    spans: Spans  # when, over all interior steps


def exposed(run: Run, steps: Steps, ledger: Ledger) -> Exposed | None:
    """What is exposed of the communication in interior steps; None where none is."""
    all_of_them = collectives(run, steps, ledger)
    if all_of_them is None or not all_of_them.exposed_ns.any():
        return None
    spans, many = ledger.spans["communication"], len(ledger.step_ns)
    start, end = all_of_them.start_ns, all_of_them.start_ns + all_of_them.dur_ns
    by_kind = {}
    for index in np.unique(all_of_them.kind).tolist():
        mine = all_of_them.kind == index
        by_kind[KINDS[index]] = intersect(union(start[mine], end[mine]), spans).total_ns // many
    ranked = tuple(sorted(by_kind.items(), key=lambda each: -each[1]))
    tail_ns, tail_bytes = _tail(all_of_them, steps, many)
    inside = all_of_them.interior
    whole_ns = max(1, union(start[inside], end[inside]).total_ns)
    return Exposed(
        exposed_ns=spans.total_ns // many,
        hidden_frac=max(0.0, 1 - int(all_of_them.exposed_ns[inside].sum()) / whole_ns),
        by_kind=ranked,
        per_step=float(inside.sum() / many),
        float32=all_of_them.float32,
        rate_bytes_per_s=_rate(all_of_them, ranked[0][0]),
        tail_ns=tail_ns,
        tail_bytes=tail_bytes,
        spans=spans,
    )


def _tail(all_of_them: Collectives, steps: Steps, many: int) -> tuple[int, int | None]:
    """Exposed time per step, and size, of each step's last all-reduce."""
    reduce = np.flatnonzero(all_of_them.is_kind("all-reduce") & all_of_them.interior)
    if not len(reduce):
        return 0, None
    step = np.searchsorted(steps.start_ns, all_of_them.start_ns[reduce], side="right")
    last = reduce[np.append(step[1:] != step[:-1], True)]
    sizes = all_of_them.bytes[last]
    told = sizes[sizes >= 0]
    return int(all_of_them.exposed_ns[last].sum()) // many, int(np.median(told)) if len(told) else None


def _rate(all_of_them: Collectives, kind: str) -> float | None:
    """Bytes per second that each rank sends, as the ring algorithm does it; of the larger ones: half of all bytes."""
    mine = all_of_them.is_kind(kind) & (all_of_them.bytes > 0) & (all_of_them.dur_ns > 0)
    if not mine.any():
        return None
    sizes, dur, ranks = all_of_them.bytes[mine], all_of_them.dur_ns[mine], all_of_them.group_size[mine]
    others = np.where(ranks > 1, (ranks - 1) / np.maximum(ranks, 1), 1.0)
    large = sizes >= np.median(sizes)
    moved = sizes * others * (2 if kind == "all-reduce" else 1)
    return float(moved[large].sum() / dur[large].sum() * 1e9)


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """All-reduces of a step, and how much of it goes to small ones."""

    per_step: float
    small_per_step: float  # under a mebibyte
    median_bytes: int  # of all of them
    total_bytes: int  # per step
    small_exposed_ns: int  # per step
    spans: Spans  # the exposed time of the small ones


SMALL_BYTES = 1 << 20  # DDP's own first bucket; under it a collective costs its latency, not its bytes


def buckets(run: Run, steps: Steps, ledger: Ledger) -> Buckets | None:
    """The all-reduces of the interior steps by size; None where there are none, or their sizes are not told."""
    all_of_them = collectives(run, steps, ledger)
    if all_of_them is None:
        return None
    mine = all_of_them.is_kind("all-reduce") & all_of_them.interior & (all_of_them.bytes >= 0)
    if not mine.any():
        return None
    many = len(ledger.step_ns)
    small = mine & (all_of_them.bytes < SMALL_BYTES)
    ends = all_of_them.start_ns + all_of_them.dur_ns
    spans = intersect(union(all_of_them.start_ns[small], ends[small]), ledger.spans["communication"])
    return Buckets(
        per_step=float(mine.sum() / many),
        small_per_step=float(small.sum() / many),
        median_bytes=int(np.median(all_of_them.bytes[mine])),
        total_bytes=int(all_of_them.bytes[mine].sum()) // many,
        small_exposed_ns=spans.total_ns // many,
        spans=spans,
    )
