"""A rule about batches of tokens that are mostly padding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpulab.analysis.data.loader import training_loader
from gpulab.analysis.host.outside_model import CPU_PARTS
from gpulab.analysis.steps.forward_backward import backward_passes, forward_backward_spans
from gpulab.intervals import intersect, subtract
from gpulab.rules.data.padding_code import cut_padding_code, padding_advice
from gpulab.rules.data.work_in_spans import Work, work_in_spans
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, Gain, known_numbers
from gpulab.rules.engine.phrases import step_spends
from gpulab.rules.kernels.speedup import faster_kernels_gain, gain_if_significant
from gpulab.run import Loader, Run
from gpulab.wording import number, percent

_MIN_PADDING_FRAC = 0.3
_MIN_WORK_FRAC = 0.3  # of a step in forward and backward passes
_FIXED_FRAC = 0.3  # of the padding beyond the longest row of its batch: from it on, the batches have a fixed length
_LEAST_REMOVED = 0.5  # of what the fix can remove: kernels on half the tokens take more than half the time
_RECURRENT = frozenset(("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"))
_MIN_RECURRENT_FRAC = 0.3  # of the forward pass: with less, other layers decide how long a packed batch takes
_ATTENTION_FRAC = 0.25  # of the work, at best: its time grows with the square of the length
_BASIS = (
    "forward and backward passes with less padding: at worst half of what the fix can remove, at best none is left and "
    "a quarter of the work is attention"
)
_FLOOR_ASSUMES = "no padding, if all the work is attention, which grows with the square of the length"
_TIME_STEPS_BASIS = (
    "fewer time steps: at worst, half of those beyond the mean length remain and other layers take as long; at best, "
    "none remain and all work shrinks as much"
)
_TIME_STEPS_FLOOR = "no more time steps than the mean length of the rows"
_VARYING_LENGTHS = (
    "torch.compile compiles again for new lengths: compile with dynamic=True, or pad to a multiple of 64 "
    "(pad_to_multiple_of=64 in collators of Transformers)."
)


def padding(evidence: Evidence) -> Finding | None:
    """Batches of tokens are mostly padding, and the model computes it like any other token.

    Proof: the rows of the integer tensors in a batch end (or start) with a run of one value that hardly occurs
    elsewhere, or that the attention mask hides. gpulab reads up to eight batches of each DataLoader. Forward and
    backward passes take much of each step.

    Confused with: vectors of labels, flattened images and labels that a loss function ignores, which have the same
    value everywhere; a model that leaves out the padding. `pack_padded_sequence` does, but where a recurrent layer
    runs its time steps one after another, as on a CPU, a batch has as many of them as its longest row.

    What to do: pad each batch to its longest row instead of a fixed length, and put samples of similar length into the
    same batch.
    """
    loader = training_loader(evidence.run)
    if loader is None or loader.padding_frac is None or not _MIN_PADDING_FRAC <= loader.padding_frac < 1:
        return None
    is_packed = _packs_sequences(evidence.run)
    work = _passes_work(evidence, with_dispatch=is_packed)
    if work is None or evidence.step_share(work.cost_ns) < _MIN_WORK_FRAC:
        return None
    fixed_frac = min(loader.padding_frac, loader.padding_to_longest_frac or 0.0)
    has_fixed_length = fixed_frac >= _FIXED_FRAC * loader.padding_frac
    left = _left(evidence, loader.padding_frac, fixed_frac if has_fixed_length else None, is_packed)
    gain = None if left is None else _gain(evidence, work, left)
    if gain is None:
        return None
    return Finding(
        ledger_parts=("matmul", "kernels") if evidence.on_gpu else CPU_PARTS if is_packed else ("compute",),
        claim=_claim(loader, is_packed),
        evidence=(
            *_lengths_text(loader, fixed_frac, has_fixed_length),
            f"{step_spends(evidence, evidence.unprofiled_ns(work.cost_ns))} in forward and backward passes, whose work "
            f"grows with the number of {'time steps' if is_packed else 'tokens'}.",
        ),
        numbers=known_numbers(
            frac=loader.padding_frac,
            to_longest_frac=loader.padding_to_longest_frac,
            length=loader.row_length,
            cost_ns=work.cost_ns,
        ),
        fix=cut_padding_code(evidence, loader) if has_fixed_length else "",
        advice=padding_advice(loader, fixed=has_fixed_length, mixed=loader.padding_frac - fixed_frac),
        gain=gain,
        confidence=LIKELY,
        spans=work.spans,
        caveats=(_VARYING_LENGTHS,) if any(model.compiled for model in evidence.run.models) else (),
    )


def _claim(loader: Loader, is_packed: bool) -> str:
    name = f" of {loader.name}" if loader.name else ""
    share = percent(loader.padding_frac or 0.0)
    if is_packed:
        return (
            f"A batch{name} has as many time steps as its longest row, although {share} of its positions are padding: "
            "pack_padded_sequence leaves out the padding, but not the steps."
        )
    return f"{share} of the tokens in a batch{name} are padding."


def _passes_work(evidence: Evidence, *, with_dispatch: bool) -> Work | None:
    """Return the work of forward and backward passes; `with_dispatch`: each time step calls its own operators."""
    passes = forward_backward_spans(evidence.run)
    work = None if passes is None else work_in_spans(evidence, passes)
    return work._replace(cost_ns=work.length_ns) if work is not None and with_dispatch else work


def _packs_sequences(run: Run) -> bool:
    """Whether the model leaves out the padding itself: pack_padded_sequence in front of a recurrent layer."""
    return "aten::_pack_padded_sequence" in run.event_rows.text("name").vocabulary


def _recurrent_frac(run: Run) -> float:
    """Return the share of the forward passes in recurrent layers, 0-1."""
    passes, backward = forward_backward_spans(run), backward_passes(run)
    if passes is None or backward is None:
        return 0.0
    forward = subtract(passes, backward.spans)
    layers = run.event_rows.select(np.flatnonzero(run.event_rows.matching(_RECURRENT.__contains__))).spans()
    return intersect(forward, layers).total_ns / max(1, forward.total_ns)


class _Left(NamedTuple):
    """What is left of forward and backward passes without the padding, 0-1, and what that assumes."""

    worst: float
    best: float
    least: float
    basis: str
    least_assumes: str


def _left(evidence: Evidence, padding_frac: float, fixed_frac: float | None, is_packed: bool) -> _Left | None:
    """Return what is left of the passes without `fixed_frac`, the padding beyond the longest rows, or without any."""
    if is_packed:
        return None if fixed_frac is not None else _left_of_time_steps(evidence, padding_frac)
    return _left_of_padding(padding_frac if fixed_frac is None else fixed_frac, padding_frac)


def _left_of_padding(removable_frac: float, padding_frac: float) -> _Left:
    """`removable_frac`: the part of the padding that the fix removes, of all positions like `padding_frac`."""
    tokens = 1 - padding_frac
    best = (1 - _ATTENTION_FRAC) * tokens + _ATTENTION_FRAC * tokens**2
    return _Left(1 - _LEAST_REMOVED * removable_frac, best, tokens**2, _BASIS, _FLOOR_ASSUMES)


def _left_of_time_steps(evidence: Evidence, padding_frac: float) -> _Left | None:
    """Of packed sequences, the recurrent layers compute fewer time steps; at best, all other work shrinks as much.

    None on a GPU, where one kernel may compute all time steps, and if other layers take most of the time.
    """
    recurrent_frac = _recurrent_frac(evidence.run)
    if evidence.on_gpu or recurrent_frac < _MIN_RECURRENT_FRAC:
        return None
    worst = 1 - _LEAST_REMOVED * padding_frac * recurrent_frac
    return _Left(worst, 1 - padding_frac, 1 - padding_frac, _TIME_STEPS_BASIS, _TIME_STEPS_FLOOR)


def _gain(evidence: Evidence, work: Work, left: _Left) -> Gain | None:
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


def _lengths_text(loader: Loader, fixed_frac: float, has_fixed_length: bool) -> tuple[str, ...]:
    rows: tuple[str, ...] = ()
    if loader.row_length is not None and loader.padding_frac is not None:
        tokens = loader.row_length * (1 - loader.padding_frac)
        rows = (f"A row has {number(loader.row_length)} positions on average, {number(tokens)} of them not padding.",)
    if has_fixed_length:
        return (*rows, f"{percent(fixed_frac)} of the positions lie beyond the end of the longest row of their batch.")
    if loader.same_row_length:
        return (
            *rows,
            "Rows have the same length in all inspected batches, although the lengths of the samples differ.",
        )
    return (*rows, "Batches are padded to about their longest row, but the lengths within a batch differ.")
