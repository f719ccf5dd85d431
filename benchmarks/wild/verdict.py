"""From outcomes to a verdict: the ratio of every change per round, and the change that wins."""

import math
import statistics
from typing import TypedDict

from benchmarks.wild.loop import Loop
from benchmarks.wild.outcome import UNCHANGED, Outcome

GAIN = 1.1  # a change wins only if its ratio is above this in every round, or of many in all but one
AS_FAST = 0.95  # of the fastest change
LARGER_BATCH = "larger_batch"
MANY_ROUNDS = 5  # from here on, the lowest and the highest ratio are left out: other programs may have disturbed them


class ChangeResult(TypedDict):
    """The gain of one change: seconds of the unchanged cell over its seconds, per round.

    `low` and `high` are the ends of the ratios, of many rounds without the lowest and the highest.
    """

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


def change_result(kind: str, base_s: list[float], changed_s: list[float], loss: float) -> ChangeResult:
    """The gain of a change over the rounds in which it ran: the first ones of the unchanged cell."""
    ratios = sorted(before / after for before, after in zip(base_s, changed_s, strict=False))
    usual = ratios[1:-1] if len(ratios) >= MANY_ROUNDS else ratios
    return ChangeResult(
        kind=kind,
        ratio=round(statistics.median(ratios), 3),
        low=round(usual[0], 3),
        high=round(usual[-1], 3),
        seconds=[round(seconds, 3) for seconds in changed_s],
        loss=loss,
    )


def contenders(result: LoopResult) -> list[str]:
    """The changes that may still be the fastest, or as fast; more rounds are worth their time if these are several.

    A larger batch sets no bar: without it as an answer, the fastest of the others counts.
    """
    changes = result["changes"]
    bar = max((change["low"] for change in changes.values() if change["kind"] != LARGER_BATCH), default=0.0)
    return [name for name, change in changes.items() if change["high"] > max(GAIN, AS_FAST * bar)]


def undecided(result: LoopResult, candidates: list[str]) -> bool:
    """Whether more rounds may change the answer: no change is surely above `GAIN`, or several may be the fastest."""
    return len(candidates) > 1 or (len(candidates) == 1 and candidates[0] != result["best_change"])


def with_rounds(result: LoopResult, rounds: list[dict[str, Outcome]]) -> LoopResult:
    """The result with more rounds, each of the unchanged cell and the same changes."""
    base_s = [*result["base_s"], *(outcomes[UNCHANGED].seconds for outcomes in rounds)]
    changes = dict(result["changes"])
    for name in [name for name in rounds[0] if name != UNCHANGED]:
        seconds = [*changes[name]["seconds"], *(outcomes[name].seconds for outcomes in rounds)]
        changes[name] = change_result(changes[name]["kind"], base_s, seconds, rounds[-1][name].loss)
    winner = best_change(changes)
    return {
        **result,
        "base_s": [round(seconds, 3) for seconds in base_s],
        "changes": changes,
        "best": changes[winner]["kind"] if winner else None,
        "best_change": winner,
    }


def best_change(changes: dict[str, ChangeResult]) -> str | None:
    """The change with the largest median ratio among those surely above `GAIN`; None if there is none."""
    winners = [name for name, result in changes.items() if result["low"] > GAIN]
    return max(winners, key=lambda name: changes[name]["ratio"], default=None)


def loop_result(loop: Loop, outcomes: dict[str, list[Outcome]], scale: float) -> LoopResult:
    """The result of a loop of this fraction of its full size, from the outcomes of every variant, one per round."""
    base = outcomes[UNCHANGED]
    base_s = [outcome.seconds for outcome in base]
    changes = {
        change.name: change_result(
            change.kind, base_s, [each.seconds for each in outcomes[change.name]], outcomes[change.name][-1].loss
        )
        for change in loop.changes
    }
    winner = best_change(changes)
    return LoopResult(
        scale=scale,
        base_s=[round(seconds, 3) for seconds in base_s],
        base_loss=base[-1].loss,
        samples=base[-1].samples,
        peak_memory_mib=round(max(outcome.peak_memory_mib for runs in outcomes.values() for outcome in runs)),
        changes=changes,
        best=changes[winner]["kind"] if winner else None,
        best_change=winner,
    )
