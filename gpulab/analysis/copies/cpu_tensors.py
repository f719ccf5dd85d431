"""Tensors that the main loop fills on the CPU and then copies to the device, where they could have been made."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.copies.host_to_device import calls_of
from gpulab.analysis.events.nesting import outermost
from gpulab.analysis.host.launches import in_interior
from gpulab.analysis.host.syncs import copied, holds_call
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import DISPATCHING, Ledger
from gpulab.intervals import Ints, Spans, covered_ns, intersect, merged
from gpulab.rows import Array, Rows
from gpulab.run import Run
from gpulab.tables import Kind

# What fills a tensor in place, and the call by which a user makes a tensor so.
FILLS = {
    "aten::normal_": "randn",
    "aten::uniform_": "rand",
    "aten::random_": "randint",
    "aten::bernoulli_": "bernoulli",
    "aten::exponential_": "exponential",
    "aten::zero_": "zeros",
    "aten::fill_": "full",
}
WORK_NS = 10_000  # a shorter fill is of a few numbers
SOON_NS = 200_000  # without shapes, only a copy that follows at once is taken for one of what was filled
ITEM_BYTES = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class Built:
    """Per typical step: what is filled on the CPU and copied."""

    count: int
    call: str  # the call that most of it comes from: "randn"
    shape: tuple[int, ...] | None  # of the one that took longest; None where shapes were not recorded
    bytes: int | None  # copied; None where the trace does not tell
    filling_ns: int  # the CPU filling
    exposed_ns: int  # filling and copying with nothing else on the device
    spans: Spans  # that time, over all interior steps


def cpu_tensor_creation(run: Run, steps: Steps, ledger: Ledger) -> Built | None:
    """What the loop fills on the CPU before it copies it to the device; None where there is no such thing."""
    if ledger.device != "gpu":
        return None
    fills, event = _fills(run, steps)
    if not len(fills):
        return None
    copies = in_interior(copied(run, "HtoD"), steps)
    if not len(copies):
        return None
    shapes = _shapes(run, event)
    fill, copy = _paired(fills, _called(run, copies), copies, shapes, steps.traced_ns or 0)
    if not fill.any():
        return None
    fills, copies = fills.where(fill), copies.where(copy)
    calls = calls_of(run, copies)
    waits = merged(*(ledger.spans[key] for key in ("copy_call", *DISPATCHING)))
    copying = intersect(ledger.spans["copies"], copies.spans())
    spans = merged(intersect(waits, merged(fills.spans(), calls.spans())), copying)
    many, told = int(steps.interior.sum()), copies["bytes"][copies["bytes"] >= 0]
    most = np.flatnonzero(fill)[fills["dur_ns"].argmax()]
    return Built(
        count=max(1, round(len(fills) / many)),
        call=_usual(fills),
        shape=shapes[most],
        bytes=int(told.sum()) // many if len(told) else None,
        filling_ns=steps.typical_covered_ns(fills.spans()),
        exposed_ns=steps.typical_covered_ns(spans),
        spans=spans,
    )


def _fills(run: Run, steps: Steps) -> tuple[Rows, Ints]:
    """Fills by the CPU in interior steps and their events: no call to the device is in them, and no DataLoader."""
    events = run.event_rows
    wanted = events.matching(FILLS.__contains__)
    index = np.flatnonzero(wanted & (events["kind"] == Kind.OP) & (events["dur_ns"] >= WORK_NS))
    rows = events.where(index)
    start = rows["start_ns"]
    elsewhere = covered_ns(events.of_kind(Kind.LOADER).spans(), start, start + 1) == 0
    keep = outermost(rows) & elsewhere & (covered_ns(steps.interior_spans, start, start + 1) > 0)
    rows, index = rows.where(keep), index[keep]
    by_cpu = ~holds_call(run, rows)
    return rows.where(by_cpu), index[by_cpu]


def _called(run: Run, copies: Rows) -> Ints:
    """When the call for each copy began; -1 where that is not in the trace."""
    calls = calls_of(run, copies)
    order = np.argsort(calls["correlation"], kind="stable")
    known = calls["correlation"][order]
    if not len(known):
        return np.full(len(copies), -1, np.int64)
    place = np.minimum(np.searchsorted(known, copies["correlation"]), len(known) - 1)
    linked = (known[place] == copies["correlation"]) & (copies["correlation"] >= 0)
    return np.where(linked, calls["start_ns"][order][place], -1)


def _shapes(run: Run, event: Ints) -> list[tuple[int, ...] | None]:
    """The shape of what each of these events fills; None where it was not recorded."""
    words = run.shape_rows.words("shapes")
    codes = run.shape_rows.spread("shapes", len(run.event_rows))[event].tolist()
    known = {code: _first_shape(words.vocabulary[code]) for code in set(codes) if code >= 0}
    return [known.get(code) for code in codes]


def _first_shape(text: str) -> tuple[int, ...] | None:
    try:
        shapes = json.loads(text)
        return tuple(int(size) for size in shapes[0])
    except (ValueError, TypeError, IndexError):  # another dialect's words for shapes
        return None


def _paired(
    fills: Rows, called: Ints, copies: Rows, shapes: list[tuple[int, ...] | None], step_ns: int
) -> tuple[Array, Array]:
    """Which fills are copied afterwards, and which copies are theirs.

    Where shapes are known it is the next copy of as many elements, within a step; elsewhere one that follows at once.
    """
    fill, copy = np.zeros(len(fills), bool), np.zeros(len(copies), bool)
    ends = fills["start_ns"] + fills["dur_ns"]
    for shape in set(shapes):
        mine = np.array([each == shape for each in shapes])
        fits, within = called >= 0, SOON_NS
        if shape is not None:
            sizes = [math.prod(shape) * each for each in ITEM_BYTES]
            fits, within = fits & np.isin(copies["bytes"], sizes), step_ns
        theirs = np.flatnonzero(fits)
        if not len(theirs):
            continue
        theirs = theirs[np.argsort(called[theirs], kind="stable")]
        asked = np.flatnonzero(mine)
        place = np.searchsorted(called[theirs], ends[asked])
        found = place < len(theirs)
        asked, place = asked[found], theirs[place[found]]
        soon = called[place] - ends[asked] <= within
        fill[asked[soon]], copy[place[soon]] = True, True
    return fill, copy


def _usual(fills: Rows) -> str:
    spent: Counter[str] = Counter()
    for name, dur in zip(fills.words("name").to_list(), fills["dur_ns"].tolist(), strict=True):
        spent[FILLS[name or ""]] += dur
    return spent.most_common(1)[0][0]
