"""What memory is for, by when it was asked for and when it was given back: nothing is assumed about a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.memory.step_phases import BACKWARD, FORWARD, OPTIMIZER, phase_of
from gpulab.analysis.steps.detection import Steps
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Run

NEVER = np.iinfo(np.int64).max
BEFORE = "from before the step"
KEPT = "made in forward, kept for backward"
LEFT = "made in backward, kept for the optimizer"
MADE = "made by the optimizer, kept"
PASSING = "temporaries, gone before the phase ends"
KINDS = (BEFORE, KEPT, LEFT, MADE, PASSING)


@dataclass(frozen=True)
class Peak:
    """What was given out at the moment of the interior steps when most was; the kinds sum to all of it."""

    step: int  # which step, from 0
    phase: int
    total_bytes: int
    by_kind: dict[str, int]


def at_peak(run: Run, found: Steps, device: int) -> Peak | None:
    """The highest moment of the interior steps; None where memory was not recorded piece by piece in them."""
    rows = run.memory_rows
    rows = rows.where((rows["device"] == device) & (rows["allocated_bytes"] >= 0) & (rows["address"] >= 0))
    step = np.searchsorted(found.start_ns, rows["at_ns"], side="right") - 1
    inside = (step >= 0) & found.interior[np.maximum(step, 0)] & (rows["at_ns"] < found.end_ns[np.maximum(step, 0)])
    if not inside.any():
        return None
    candidates = np.flatnonzero(inside)
    top = int(candidates[rows["allocated_bytes"][candidates].argmax()])
    at_ns, index = int(rows["at_ns"][top]), int(step[top])
    total = int(rows["allocated_bytes"][top])
    born, gone, count = _pieces(rows)
    # Rows are in order of time; what was asked for at the very moment of the peak comes with it.
    place = np.searchsorted(rows["at_ns"], at_ns, side="right")
    alive = (born < place) & (gone >= place)
    begins = int(found.start_ns[index])
    mine = alive & (rows["at_ns"][born] >= begins)
    ended_ns = np.where(gone == NEVER, NEVER, rows["at_ns"][np.minimum(gone, len(rows) - 1)])[mine]
    kinds = _kinds(run, rows["at_ns"][born][mine], ended_ns, int(found.end_ns[index]))
    by = {name: int(count[mine][kinds == number].sum()) for number, name in enumerate(KINDS)}
    by[BEFORE] = max(0, total - sum(by.values()))
    return Peak(index, int(phase_of(run, np.array([at_ns]))[0]), total, {name: by[name] for name in KINDS if by[name]})


def _pieces(rows: Rows) -> tuple[Ints, Ints, Ints]:
    """Of each piece: the row that asked for it, the row that gave it back (NEVER: none), and its size."""
    order = np.lexsort((np.arange(len(rows)), rows["address"]))
    address, change = rows["address"][order], rows["bytes"][order]
    paired = (address[1:] == address[:-1]) & (change[:-1] > 0) & (change[1:] < 0)
    asked = np.flatnonzero(change > 0)
    last = len(order) - 1
    freed = np.zeros(len(asked), bool)
    freed[asked < last] = paired[asked[asked < last]]
    gone = np.where(freed, order[np.minimum(asked + 1, last)], NEVER)
    return np.asarray(order[asked], np.int64), np.asarray(gone, np.int64), np.asarray(change[asked], np.int64)


def _kinds(run: Run, born_ns: Ints, gone_ns: Ints, step_ends_ns: int) -> Ints:
    """For each piece asked for in the step of the peak, which of KINDS it is."""
    made = phase_of(run, born_ns)
    later = gone_ns >= step_ends_ns
    ended = np.where(later, OPTIMIZER + 1, phase_of(run, np.minimum(gone_ns, step_ends_ns)))
    kinds = np.full(len(born_ns), KINDS.index(PASSING), np.int64)
    kinds[(made == FORWARD) & (ended != FORWARD)] = KINDS.index(KEPT)
    kinds[(made == BACKWARD) & (ended != BACKWARD)] = KINDS.index(LEFT)
    kinds[(made == OPTIMIZER) & later] = KINDS.index(MADE)
    return kinds
