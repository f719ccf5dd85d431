"""Tensors that the loop creates on the CPU and copies to the device, although they could be created there."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.copies.host_to_device import copy_calls
from gpulab.analysis.events.nesting import outermost
from gpulab.analysis.host.launches import rows_in_interior
from gpulab.analysis.host.syncs import contains_runtime_call, copies_in_direction
from gpulab.analysis.kernels.flops import parse_inputs
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import DISPATCH_KEYS, Ledger
from gpulab.intervals import Ints, Spans, covered_ns, intersect, no_spans, union_of
from gpulab.rows import Array, Rows
from gpulab.run import Run
from gpulab.tables import EventKind

# In-place fill operators, and the PyTorch function with which a user creates such a tensor.
FILLS = {
    "aten::normal_": "randn",
    "aten::uniform_": "rand",
    "aten::random_": "randint",
    "aten::bernoulli_": "bernoulli",
    "aten::exponential_": "exponential",
    "aten::zero_": "zeros",
    "aten::fill_": "full",
}
WORK_NS = 10_000  # a shorter fill writes only a few numbers
# Without shapes, a copy is assigned to the fill before it if it starts this soon, or if no kernel is launched between
# them and the fill took as long as filling so many bytes does.
SOON_NS = 200_000
FREED_WITHIN_NS = 300_000  # after the end of the copy call: the operators around it end first
MAX_FILL_BYTES_PER_NS = 50.0  # more than a core writes
ITEM_BYTES = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class CpuTensors:
    """Tensors filled on the CPU and copied, per typical step."""

    count: int
    call: str  # the function with most fill time: "randn"
    shape: tuple[int, ...] | None  # of the tensor with the longest fill; None if shapes were not recorded
    bytes: int | None  # copied; None if unknown
    filling_ns: int  # CPU time of the fills
    exposed_ns: int  # fills, copies and the pauses after them, during which the device does nothing else
    spans: Spans  # that time, over all interior steps


def find_cpu_filled_tensors(run: Run, steps: Steps, ledger: Ledger) -> CpuTensors | None:
    """Find tensors that the loop fills on the CPU before it copies them to the device; None if there are none."""
    if ledger.device != "gpu":
        return None
    fills, event = _fills(run, steps)
    if not len(fills):
        return None
    copies = rows_in_interior(copies_in_direction(run, "HtoD"), steps)
    if not len(copies):
        return None
    shapes = _shapes(run, event)
    launch_ns = np.sort(run.event_rows.of_kind(EventKind.LAUNCH)["start_ns"])
    fill, copy = _match_copies(fills, _call_start_ns(run, copies), copies, shapes, launch_ns, steps.traced_ns or 0)
    if not fill.any():
        return None
    fills, copies = fills.select(fill), copies.select(copy)
    calls = copy_calls(run, copies)
    waits = union_of(*(ledger.spans[key] for key in ("copy_call", *DISPATCH_KEYS)))
    copying = intersect(ledger.spans["copies"], copies.spans())
    freeing = _freeing(ledger, calls)
    spans = union_of(intersect(waits, union_of(fills.spans(), calls.spans())), copying, freeing)
    step_count, copied_bytes = int(steps.interior.sum()), copies["bytes"][copies["bytes"] >= 0]
    longest = np.flatnonzero(fill)[fills["dur_ns"].argmax()]
    return CpuTensors(
        count=max(1, round(len(fills) / step_count)),
        call=_main_function(fills),
        shape=shapes[longest],
        bytes=int(copied_bytes.sum()) // step_count if len(copied_bytes) else None,
        filling_ns=steps.typical_covered_ns(fills.spans()),
        exposed_ns=steps.typical_covered_ns(spans),
        spans=spans,
    )


def _freeing(ledger: Ledger, calls: Rows) -> Spans:
    """Return the pauses of the main thread just after these copies: it frees the memory of the CPU tensor.

    The system takes large blocks back page by page: 3.7 ms for 64 MiB, measured on the host of an H100.
    """
    pauses = union_of(*(ledger.spans[key] for key in ("glue", "python") if key in ledger.spans))
    ends_ns = np.sort(calls["start_ns"] + calls["dur_ns"])
    if not len(ends_ns) or not len(pauses.start_ns):
        return no_spans()
    before = np.searchsorted(ends_ns, pauses.start_ns, side="right") - 1
    follows = (before >= 0) & (pauses.start_ns - ends_ns[np.maximum(before, 0)] <= FREED_WITHIN_NS)
    return Spans(pauses.start_ns[follows], pauses.end_ns[follows])


def _fills(run: Run, steps: Steps) -> tuple[Rows, Ints]:
    """Return fills on the CPU in interior steps and their event rows, without fills inside a DataLoader."""
    events = run.event_rows
    fills = events.matching(FILLS.__contains__)
    index = np.flatnonzero(fills & events.is_kind(EventKind.OP) & (events["dur_ns"] >= WORK_NS))
    rows = events.select(index)
    start = rows["start_ns"]
    outside_loader = covered_ns(events.of_kind(EventKind.LOADER).spans(), start, start + 1) == 0
    keep = outermost(rows) & outside_loader & (covered_ns(steps.interior_spans, start, start + 1) > 0)
    rows, index = rows.select(keep), index[keep]
    by_cpu = ~contains_runtime_call(run, rows)
    return rows.select(by_cpu), index[by_cpu]


def _call_start_ns(run: Run, copies: Rows) -> Ints:
    """Return the start of the call of each copy; -1 if it is not in the trace."""
    calls = copy_calls(run, copies)
    order = np.argsort(calls["correlation"], kind="stable")
    call_ids = calls["correlation"][order]
    if not len(call_ids):
        return np.full(len(copies), -1, np.int64)
    index = np.minimum(np.searchsorted(call_ids, copies["correlation"]), len(call_ids) - 1)
    linked = (call_ids[index] == copies["correlation"]) & (copies["correlation"] >= 0)
    return np.where(linked, calls["start_ns"][order][index], -1)


def _shapes(run: Run, event: Ints) -> list[tuple[int, ...] | None]:
    """Return the shape of the tensor that each event fills; None if it was not recorded."""
    texts = run.shape_rows.text("shapes")
    codes = run.shape_rows.per_event("shapes", len(run.event_rows))[event].tolist()
    shape_of_code = {code: _first_shape(texts.vocabulary[code]) for code in set(codes) if code >= 0}
    return [shape_of_code.get(code) for code in codes]


def _first_shape(text: str) -> tuple[int, ...] | None:
    shapes = parse_inputs(text, None).shapes
    return shapes[0] if shapes else None


def _match_copies(
    fills: Rows, call_ns: Ints, copies: Rows, shapes: list[tuple[int, ...] | None], launch_ns: Ints, step_ns: int
) -> tuple[Array, Array]:
    """Match fills with the copies of their tensors: return masks of the matched fills and copies.

    With known shapes, it is the next copy of the same number of elements within a step; else a copy that follows soon.
    """
    fill, copy = np.zeros(len(fills), bool), np.zeros(len(copies), bool)
    ends = fills["start_ns"] + fills["dur_ns"]
    for shape in set(shapes):
        same_shape = np.array([each == shape for each in shapes])
        fits = call_ns >= 0
        if shape is not None:
            fits &= np.isin(copies["bytes"], [math.prod(shape) * each for each in ITEM_BYTES])
        candidates = np.flatnonzero(fits)
        if not len(candidates):
            continue
        candidates = candidates[np.argsort(call_ns[candidates], kind="stable")]
        open_fills = np.flatnonzero(same_shape)
        index = np.searchsorted(call_ns[candidates], ends[open_fills])
        has_copy = index < len(candidates)
        open_fills, index = open_fills[has_copy], candidates[index[has_copy]]
        soon = call_ns[index] - ends[open_fills] <= (SOON_NS if shape is None else step_ns)
        if shape is None:
            is_next = np.searchsorted(launch_ns, ends[open_fills]) == np.searchsorted(launch_ns, call_ns[index])
            soon |= is_next & (copies["bytes"][index] <= MAX_FILL_BYTES_PER_NS * fills["dur_ns"][open_fills])
        fill[open_fills[soon]], copy[index[soon]] = True, True
    return fill, copy


def _main_function(fills: Rows) -> str:
    fill_ns: Counter[str] = Counter()
    for name, dur in zip(fills.text("name").to_list(), fills["dur_ns"].tolist(), strict=True):
        fill_ns[FILLS[name or ""]] += dur
    return fill_ns.most_common(1)[0][0]
