"""Classify allocated memory by the phases of allocation and free, without assumptions about the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.memory.step_phases import BACKWARD, FORWARD, OPTIMIZER, phase_of
from gpulab.analysis.steps.detection import Steps
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Run

NEVER = np.iinfo(np.int64).max
BEFORE_STEP = "allocated before the step"
FOR_BACKWARD = "allocated in forward, kept for backward"
FOR_OPTIMIZER = "allocated in backward, kept for the optimizer"
BY_OPTIMIZER = "allocated by the optimizer, kept"
TEMPORARY = "temporary, freed before the phase ends"
KINDS = (BEFORE_STEP, FOR_BACKWARD, FOR_OPTIMIZER, BY_OPTIMIZER, TEMPORARY)


@dataclass(frozen=True)
class Peak:
    """Allocated memory at the peak of the interior steps. The kinds sum to the total."""

    step: int  # index of the step
    phase: int  # index into step_phases.PHASES
    total_bytes: int
    by_kind: dict[str, int]


def memory_at_peak(run: Run, steps: Steps, device: int) -> Peak | None:
    """Return the memory peak of the interior steps; None if single allocations were not recorded in them."""
    rows = run.memory_rows
    rows = rows.select((rows["device"] == device) & (rows["allocated_bytes"] >= 0) & (rows["address"] >= 0))
    step = np.searchsorted(steps.start_ns, rows["at_ns"], side="right") - 1
    inside = (step >= 0) & steps.interior[np.maximum(step, 0)] & (rows["at_ns"] < steps.end_ns[np.maximum(step, 0)])
    if not inside.any():
        return None
    candidates = np.flatnonzero(inside)
    peak_row = int(candidates[rows["allocated_bytes"][candidates].argmax()])
    at_ns, index = int(rows["at_ns"][peak_row]), int(step[peak_row])
    total = int(rows["allocated_bytes"][peak_row])
    allocated_row, freed_row, sizes = _allocations(rows)
    # Rows are in order of time; allocations at the time of the peak are included.
    after_peak = np.searchsorted(rows["at_ns"], at_ns, side="right")
    alive = (allocated_row < after_peak) & (freed_row >= after_peak)
    step_start_ns = int(steps.start_ns[index])
    of_step = alive & (rows["at_ns"][allocated_row] >= step_start_ns)
    freed_ns = np.where(freed_row == NEVER, NEVER, rows["at_ns"][np.minimum(freed_row, len(rows) - 1)])[of_step]
    kinds = _classify(run, rows["at_ns"][allocated_row][of_step], freed_ns, int(steps.end_ns[index]))
    bytes_by_kind = {name: int(sizes[of_step][kinds == number].sum()) for number, name in enumerate(KINDS)}
    bytes_by_kind[BEFORE_STEP] = max(0, total - sum(bytes_by_kind.values()))
    return Peak(
        index,
        int(phase_of(run, np.array([at_ns]))[0]),
        total,
        {name: bytes_by_kind[name] for name in KINDS if bytes_by_kind[name]},
    )


def _allocations(rows: Rows) -> tuple[Ints, Ints, Ints]:
    """Return, for each allocation, the row that allocated it, the row that freed it (NEVER: none), and its size."""
    order = np.lexsort((np.arange(len(rows)), rows["address"]))
    address, change = rows["address"][order], rows["bytes"][order]
    paired = (address[1:] == address[:-1]) & (change[:-1] > 0) & (change[1:] < 0)
    allocations = np.flatnonzero(change > 0)
    last = len(order) - 1
    is_freed = np.zeros(len(allocations), bool)
    is_freed[allocations < last] = paired[allocations[allocations < last]]
    freed_rows = np.where(is_freed, order[np.minimum(allocations + 1, last)], NEVER)
    return (
        np.asarray(order[allocations], np.int64),
        np.asarray(freed_rows, np.int64),
        np.asarray(change[allocations], np.int64),
    )


def _classify(run: Run, allocated_ns: Ints, freed_ns: Ints, step_ends_ns: int) -> Ints:
    """Return, for each allocation of the step with the peak, its index in KINDS."""
    phase_allocated = phase_of(run, allocated_ns)
    outlives_step = freed_ns >= step_ends_ns
    phase_freed = np.where(outlives_step, OPTIMIZER + 1, phase_of(run, np.minimum(freed_ns, step_ends_ns)))
    kinds = np.full(len(allocated_ns), KINDS.index(TEMPORARY), np.int64)
    kinds[(phase_allocated == FORWARD) & (phase_freed != FORWARD)] = KINDS.index(FOR_BACKWARD)
    kinds[(phase_allocated == BACKWARD) & (phase_freed != BACKWARD)] = KINDS.index(FOR_OPTIMIZER)
    kinds[(phase_allocated == OPTIMIZER) & outlives_step] = KINDS.index(BY_OPTIMIZER)
    return kinds
