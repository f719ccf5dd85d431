"""A DataLoader worker that is slower than its siblings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.data.loader import training_loader
from gpulab.rows import Rows
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, known_numbers
from gpulab.wording import count, percent

_MIN_S = 1.0  # a worker that was sampled for less has not shown its work
_BUSY, _RESTING = 0.6, 0.5  # of its time
_RATIO = 1.7  # between the slowest worker and the next
_MIN_WAIT = 0.1  # of a step


@dataclass(frozen=True, kw_only=True)
class _Activity:
    """Shares of the time of a worker: computing, and blocked on storage."""

    worker: int
    cpu_frac: float
    blocked_frac: float

    @property
    def busy_frac(self) -> float:
        return self.cpu_frac + self.blocked_frac


def slow_worker(evidence: Evidence) -> Finding | None:
    """One DataLoader worker is slower than the others, and the loop waits for it: batches are delivered in order.

    Proof: one worker computes or waits for storage most of the time while its siblings rest, because their finished
    batches wait for its turn; and the loop waits for data.

    Confused with: too few workers (`too_few_workers`), where all of them work; slow storage, where all of them wait; a
    worker that has just started.

    What to do: look for what this worker has more of: a larger shard of an IterableDataset, larger files, an
    initialisation. With PyTorch 2.6 or newer, `DataLoader(..., in_order=False)` delivers batches as they are finished.
    """
    loader = training_loader(evidence.run)
    wait_frac = evidence.part_share("loader")
    if loader is None or (loader.workers or 0) < 2 or wait_frac < _MIN_WAIT:
        return None
    activities = sorted(_activities(evidence.run.worker_rows), key=lambda activity: -activity.busy_frac)
    if len(activities) < 2:
        return None
    slowest, second = activities[0], activities[1]
    if slowest.busy_frac < _BUSY or second.busy_frac > _RESTING or slowest.busy_frac < _RATIO * second.busy_frac:
        return None
    others = [activity.busy_frac for activity in activities[1:]]
    state = "waits for storage" if slowest.blocked_frac > slowest.cpu_frac else "computes"
    return Finding(
        ledger_parts=("loader",),
        claim=f"The loop waits for one of {count(len(activities), 'DataLoader worker')} {percent(wait_frac)} of the "
        "time: it is slower than the others.",
        evidence=(
            f"Worker {slowest.worker} {state} {percent(slowest.busy_frac)} of the time, the others work "
            f"{percent(min(others))} to {percent(max(others))}: their batches are ready and wait for its turn.",
        ),
        numbers=known_numbers(busy_frac=slowest.busy_frac, others_frac=max(others), wait_frac=wait_frac),
        advice="See what this worker has more of: a larger shard of an IterableDataset, larger files, work in "
        "worker_init_fn. Or deliver batches as they are finished: DataLoader(..., in_order=False), PyTorch 2.6 or "
        "newer; the order of the batches then varies.",
        confidence=LIKELY,
        spans=evidence.ledger.spans["loader"],
    )


def _activities(rows: Rows) -> list[_Activity]:
    activities = []
    for worker in np.unique(rows["worker"]).tolist():
        part = rows.select((rows["worker"] == worker) & ~np.isnan(rows["cpu_s"]))
        seconds = (part["at_ns"][-1] - part["at_ns"][0]) / 1e9 if len(part) > 1 else 0.0
        if seconds < _MIN_S:
            continue
        blocked = part["blocked"][~np.isnan(part["blocked"])]
        activities.append(
            _Activity(
                worker=worker,
                cpu_frac=min(1.0, float(part["cpu_s"][-1] - part["cpu_s"][0]) / seconds),
                blocked_frac=float(blocked.mean()) if len(blocked) else 0.0,
            )
        )
    return activities
