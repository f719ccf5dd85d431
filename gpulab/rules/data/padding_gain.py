"""What less padding gains: batches that end with their longest row, or rows of similar length in each batch."""

from __future__ import annotations

from typing import NamedTuple

from gpulab.rules.data.work_in_spans import Work
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import Gain
from gpulab.rules.kernels.speedup import faster_kernels_gain, gain_if_significant
from gpulab.wording import percent

# At worst, the part of the removable padding whose time is saved. Kernels of a GPU take more than half as long on half
# the tokens; operators of a CPU take about as much less time. Groups of similar length keep some padding.
LEAST_REMOVED_ON_GPU = 0.5
LEAST_REMOVED_ON_CPU = 0.8
LEAST_REMOVED_BY_GROUPS = 0.7
_LEAST_OF_REMOVABLE = 0.8  # of the padding that groups of the recorded samples would leave out
_LEAST_TIME_STEPS = 0.5  # of those beyond the mean length
_ATTENTION_FRAC = 0.25  # of the work, at best: its time grows with the square of the length
_FLOOR_ASSUMES = "no padding, if all the work is attention, which grows with the square of the length"
_TIME_STEPS_BASIS = (
    "fewer time steps: at worst, half of those beyond the mean length remain and other layers take as long; at best, "
    "none remain and all work shrinks as much"
)
_TIME_STEPS_FLOOR = "no more time steps than the mean length of the rows"


class Left(NamedTuple):
    """What is left of forward and backward passes without the padding, 0-1, and what that assumes."""

    worst: float
    best: float
    least: float
    basis: str
    least_assumes: str


def least_removed(evidence: Evidence, *, by_groups: bool) -> float:
    """Return the part of the removable padding whose time is surely saved, 0-1."""
    if evidence.on_gpu:
        return LEAST_REMOVED_ON_GPU
    return LEAST_REMOVED_BY_GROUPS if by_groups else LEAST_REMOVED_ON_CPU


def left_of_padding(padding_frac: float, removed: float, remains_frac: float = 0.0) -> Left:
    """Return what is left if rows of similar length share a batch; at worst, `removed` (0-1) of the padding is saved.

    `padding_frac`: of all positions. `remains_frac`: the part of it that remains in samples with several sequences, of
    all positions as well, if a few batches are grouped; at best, half of it.
    """
    removable = 1 - min(1.0, remains_frac / max(padding_frac, 1e-9))
    removed = min(removed, _LEAST_OF_REMOVABLE * removable)
    tokens = 1 - padding_frac + min(padding_frac, remains_frac) / 2
    best = (1 - _ATTENTION_FRAC) * tokens + _ATTENTION_FRAC * tokens**2
    at_best = percent((1 + removable) / 2) + " of it" if remains_frac else "any"
    basis = (
        f"forward and backward passes with less padding: at worst without {percent(removed)} of it, at best without "
        f"{at_best}, and with a quarter of the work in attention"
    )
    return Left(1 - removed * padding_frac, best, (1 - padding_frac) ** 2, basis, _FLOOR_ASSUMES)


def left_of_fixed_length(fixed_frac: float, padding_frac: float, removed: float) -> Left:
    """Return what is left if batches end with their longest rows; at worst, `removed` (0-1) of that part is saved.

    `fixed_frac`: the padding beyond the longest rows, of all positions like `padding_frac`.
    """
    none_left = left_of_padding(padding_frac, removed)
    basis = (
        f"forward and backward passes of batches that end with their longest row: at worst, {percent(removed)} of the "
        "time of the positions behind it is saved, at best all work is attention"
    )
    best = max(none_left.best, (1 - fixed_frac) ** 2)
    return none_left._replace(worst=1 - removed * fixed_frac, best=best, basis=basis)


def left_of_time_steps(padding_frac: float, recurrent_frac: float) -> Left:
    """Return what is left of packed sequences: recurrent layers compute fewer time steps; at best, all work shrinks.

    `recurrent_frac`: the share of the forward passes in recurrent layers, 0-1.
    """
    worst = 1 - _LEAST_TIME_STEPS * padding_frac * recurrent_frac
    return Left(worst, 1 - padding_frac, 1 - padding_frac, _TIME_STEPS_BASIS, _TIME_STEPS_FLOOR)


def padding_gain(evidence: Evidence, work: Work, left: Left) -> Gain | None:
    """Return the gain of less padding; None if even the best case gains almost nothing."""
    if evidence.on_gpu:
        remaining = left.worst, left.best, left.least
        return faster_kernels_gain(evidence, work.cost_ns, remaining, left.basis, left.least_assumes, spans=work.spans)
    step_ns, passes_ns = evidence.step_ns, evidence.unprofiled_ns(work.length_ns)
    floor_ns = max(1, round(step_ns - (1 - left.least) * passes_ns))
    best_ns = max(floor_ns, round(step_ns - (1 - left.best) * passes_ns))
    worst_ns = round(step_ns - (1 - left.worst) * evidence.unprofiled_ns(work.cost_ns))
    return gain_if_significant(
        Gain(
            step_ns=step_ns,
            best_ns=best_ns,
            worst_ns=max(best_ns, worst_ns),
            floor_ns=floor_ns,
            basis=left.basis,
            floor_assumes=left.least_assumes,
        )
    )
