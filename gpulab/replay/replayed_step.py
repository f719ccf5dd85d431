"""The most typical step of a replay, with its events and its ledger: where the time of a predicted step goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import CPU_PARTS, GPU_PARTS, Ledger, build_ledger
from gpulab.replay.critical_path import step_extent
from gpulab.replay.predicted_run import predicted_run
from gpulab.replay.sweep import Schedule
from gpulab.run import Run

LIMIT_PARTS = {"the copies to the GPU": "copies"}  # ledger part of the wait that a limit adds; others: loader


@dataclass(frozen=True, eq=False)
class ReplayedStep:
    """One step of a replay; its ledger parts and the wait that a limit adds sum to its length."""

    start_ns: int
    end_ns: int
    index: int  # among the interior steps
    run: Run  # the events around the step
    ledger: Ledger | None  # of this step; None if it takes no time
    wait_part: str  # ledger part of the wait that a limit adds, such as too few workers
    wait_ns: int

    @property
    def length_ns(self) -> int:
        """Length of the step, including the wait that a limit adds."""
        return self.end_ns - self.start_ns + self.wait_ns if self.ledger is not None else 0

    @property
    def part_ns(self) -> dict[str, int]:
        """Time of the step by ledger part; sums to its length."""
        if self.ledger is None:
            return {}
        parts = {part.key: int(self.ledger.part_ns[part.key][0]) for part in self.ledger.parts}
        if self.wait_ns:
            parts[self.wait_part] = parts.get(self.wait_part, 0) + self.wait_ns
        return parts


def replayed_step(schedule: Schedule) -> ReplayedStep:
    """Return the most typical step of a replay."""
    extent = step_extent(schedule)
    start, end = round(extent.start_ns), round(extent.end_ns)
    run, ledger = step_between(schedule, start, end)
    limits = schedule.graph.limits_ns
    part = LIMIT_PARTS.get(max(limits, key=lambda name: limits[name]), "loader") if limits else "loader"
    wait_ns = round(max(0.0, schedule.step_ns - schedule.host_device_step_ns))
    return ReplayedStep(start, end, extent.step, run, ledger, part, wait_ns)


def busy_frac(part_ns: Mapping[str, int]) -> float:
    """Return the share of these parts of a ledger in which the device works."""
    parts = CPU_PARTS if "compute" in part_ns else GPU_PARTS
    busy_ns = sum(part_ns.get(part.key, 0) for part in parts if part.busy)
    return busy_ns / max(1, sum(part_ns.values()))


def step_between(schedule: Schedule, start_ns: int, end_ns: int) -> tuple[Run, Ledger | None]:
    """Return the predicted run around one step, and the ledger of that step; None if it takes no time."""
    run = predicted_run(schedule, (start_ns, end_ns))
    true = np.ones(1, bool)
    step = Steps(np.array([start_ns]), np.array([end_ns]), true, true, ~true, schedule.graph.steps.detected_by)
    return run, build_ledger(run, step)


def scaled_parts_ns(step: ReplayedStep, length_ns: int) -> Mapping[str, int]:
    """Return the ledger of a step, scaled to the given length: the un-profiled or the predicted step time."""
    factor = length_ns / max(1, step.length_ns)
    return {key: round(ns * factor) for key, ns in step.part_ns.items()}
