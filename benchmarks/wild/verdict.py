"""From outcomes to a verdict: the ratio of every change per round, and the change that wins."""

import math
import statistics
from typing import TypedDict

from benchmarks.wild.loop import Loop
from benchmarks.wild.outcome import UNCHANGED, Outcome

GAIN = 1.1  # a change wins only if its ratio is above this in every round


class ChangeResult(TypedDict):
    """The gain of one change: seconds of the unchanged cell over its seconds, per round."""

    kind: str
    ratio: float
    low: float
    high: float
    seconds: list[float]
    loss: float


class LoopResult(TypedDict):
    """What was measured of one loop."""

    scale: float  # fraction of the full size
    base_s: list[float]
    base_loss: float
    samples: int
    peak_memory_mib: float
    changes: dict[str, ChangeResult]
    best: str | None
    best_change: str | None


def round_order(variants: list[str], round_index: int) -> list[str]:
    """The order of the variants in a round: forwards in even rounds, backwards in odd ones."""
    return variants if round_index % 2 == 0 else variants[::-1]


def disagreements(loop: Loop, outcomes: dict[str, Outcome]) -> list[str]:
    """What shows that a variant does not train as the unchanged cell does; empty if nothing does."""
    base = outcomes[UNCHANGED]
    messages = []
    for variant, outcome in outcomes.items():
        title = f"{loop.name} {variant}"
        if not math.isfinite(outcome.loss):
            messages.append(f"{title}: the final loss is {outcome.loss}")
        if outcome.samples != base.samples:
            messages.append(f"{title}: {outcome.samples} samples, unchanged {base.samples}")
        same_steps = not loop.same_steps or outcome.optimizer_steps == base.optimizer_steps
        if variant != UNCHANGED and not same_steps and loop.change(variant).kind != "larger_batch":
            messages.append(f"{title}: {outcome.optimizer_steps} optimizer steps, unchanged {base.optimizer_steps}")
    return messages


def change_result(kind: str, base: list[Outcome], changed: list[Outcome]) -> ChangeResult:
    """The gain of a change over all rounds."""
    ratios = [before.seconds / after.seconds for before, after in zip(base, changed, strict=True)]
    return ChangeResult(
        kind=kind,
        ratio=round(statistics.median(ratios), 3),
        low=round(min(ratios), 3),
        high=round(max(ratios), 3),
        seconds=[round(outcome.seconds, 3) for outcome in changed],
        loss=changed[-1].loss,
    )


def best_change(changes: dict[str, ChangeResult]) -> str | None:
    """The change with the largest median ratio among those above `GAIN` in every round; None if there is none."""
    winners = [name for name, result in changes.items() if result["low"] > GAIN]
    return max(winners, key=lambda name: changes[name]["ratio"], default=None)


def loop_result(loop: Loop, outcomes: dict[str, list[Outcome]], scale: float) -> LoopResult:
    """The result of a loop of this fraction of its full size, from the outcomes of every variant, one per round."""
    base = outcomes[UNCHANGED]
    changes = {change.name: change_result(change.kind, base, outcomes[change.name]) for change in loop.changes}
    winner = best_change(changes)
    return LoopResult(
        scale=scale,
        base_s=[round(outcome.seconds, 3) for outcome in base],
        base_loss=base[-1].loss,
        samples=base[-1].samples,
        peak_memory_mib=round(max(outcome.peak_memory_mib for runs in outcomes.values() for outcome in runs)),
        changes=changes,
        best=changes[winner]["kind"] if winner else None,
        best_change=winner,
    )
