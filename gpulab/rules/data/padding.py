"""A rule about batches of tokens that are mostly padding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpulab.analysis.data.loader import training_loader
from gpulab.analysis.host.outside_model import CPU_PARTS
from gpulab.analysis.steps.forward_backward import backward_passes, forward_backward_spans
from gpulab.intervals import intersect, subtract
from gpulab.rules.data.padding_code import MIXED_FRAC, cut_padding_code, padding_advice
from gpulab.rules.data.padding_gain import (
    least_removed,
    left_of_fixed_length,
    left_of_padding,
    left_of_time_steps,
    padding_gain,
)
from gpulab.rules.data.work_in_spans import Work, work_in_spans
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, Gain, known_numbers
from gpulab.rules.engine.phrases import step_spends
from gpulab.run import Loader, Run
from gpulab.wording import number, percent

_MIN_PADDING_FRAC = 0.3
_MIN_WORK_FRAC = 0.3  # of a step in forward and backward passes
_FIXED_FRAC = 0.3  # of the padding beyond the longest row of its batch: from it on, the batches have a fixed length
_RECURRENT = frozenset(("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"))
_MIN_RECURRENT_FRAC = 0.3  # of the forward pass: with less, other layers decide how long a packed batch takes
_CLEARLY_LESS = 0.95  # of the step time with the code, at worst: from here on, advice comes before code
_CUT = "Cut each batch at the end of its longest row: rows of different lengths still share a batch."
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
    removable_frac = fixed_frac if has_fixed_length else None
    gain = (_gain_of_time_steps if is_packed else _gain)(evidence, work, loader, removable_frac)
    if gain is None:
        return None
    mixed_frac = loader.padding_frac - fixed_frac
    finding = Finding(
        ledger_parts=("matmul", "kernels") if evidence.on_gpu else CPU_PARTS if is_packed else ("compute",),
        claim=_claim(loader, is_packed),
        evidence=(*_lengths_text(loader, fixed_frac, has_fixed_length), _work_text(evidence, work, is_packed)),
        numbers=known_numbers(
            frac=loader.padding_frac,
            to_longest_frac=loader.padding_to_longest_frac,
            length=loader.row_length,
            cost_ns=work.cost_ns,
        ),
        fix=cut_padding_code(evidence, loader) if has_fixed_length else "",
        advice=padding_advice(loader, fixed=has_fixed_length, mixed=mixed_frac),
        gain=gain,
        confidence=LIKELY,
        spans=work.spans,
        caveats=(_VARYING_LENGTHS,) if any(model.compiled for model in evidence.run.models) else (),
    )
    if not has_fixed_length or mixed_frac < MIXED_FRAC:
        return finding
    return _with_better_remedy(finding, _gain(evidence, work, loader, None))


def _with_better_remedy(cut: Finding, grouped_gain: Gain | None) -> Finding:
    """Return the finding with the remedy that surely saves more first: code that cuts batches, or similar lengths.

    `cut`: with the code, if there is any, and the gain of ending each batch with its longest row.
    """
    assert cut.gain is not None
    if grouped_gain is None or grouped_gain.worst_ns > _CLEARLY_LESS * cut.gain.worst_ns:
        return cut
    with_code = (replace(cut, advice=_CUT, alternative="cut"),) if cut.fix else ()
    return replace(cut, fix="", gain=grouped_gain, alternatives=with_code)


def _claim(loader: Loader, is_packed: bool) -> str:
    name = f" of {loader.name}" if loader.name else ""
    share = percent(loader.padding_frac or 0.0)
    if is_packed:
        return (
            f"A batch{name} has as many time steps as its longest row, although {share} of its positions are padding: "
            "pack_padded_sequence leaves out the padding, but not the steps."
        )
    return f"{share} of the tokens in a batch{name} are padding."


def _work_text(evidence: Evidence, work: Work, is_packed: bool) -> str:
    unit = "time steps" if is_packed else "tokens"
    passes = f"{step_spends(evidence, evidence.unprofiled_ns(work.cost_ns))} in forward and backward passes"
    return f"{passes}, whose work grows with the number of {unit}."


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


def _gain(evidence: Evidence, work: Work, loader: Loader, fixed_frac: float | None) -> Gain | None:
    """Return the gain without `fixed_frac`, the padding beyond the longest rows; None: without any padding."""
    padding_frac, removed = loader.padding_frac or 0.0, least_removed(evidence, by_groups=fixed_frac is None)
    if fixed_frac is None:
        left = left_of_padding(padding_frac, removed, loader.padding_in_groups_frac or 0.0)
    else:
        left = left_of_fixed_length(fixed_frac, padding_frac, removed)
    return padding_gain(evidence, work, left)


def _gain_of_time_steps(evidence: Evidence, work: Work, loader: Loader, fixed_frac: float | None) -> Gain | None:
    """Return the gain of fewer time steps in recurrent layers.

    None on a GPU, where one kernel may compute all time steps, if other layers take most of the time, and for padding
    beyond the longest rows (`fixed_frac`), which packing leaves out.
    """
    recurrent_frac = _recurrent_frac(evidence.run)
    if fixed_frac is not None or evidence.on_gpu or recurrent_frac < _MIN_RECURRENT_FRAC:
        return None
    return padding_gain(evidence, work, left_of_time_steps(loader.padding_frac or 0.0, recurrent_frac))


def _lengths_text(loader: Loader, fixed_frac: float, has_fixed_length: bool) -> tuple[str, ...]:
    rows: tuple[str, ...] = ()
    if loader.row_length is not None and loader.padding_frac is not None:
        tokens = loader.row_length * (1 - loader.padding_frac)
        rows = (f"A row has {number(loader.row_length)} positions on average, {number(tokens)} of them not padding.",)
    if loader.padding_in_groups_frac is not None:
        rows += (
            "A sample has several sequences: with samples of similar length in each of the inspected batches, "
            f"{percent(loader.padding_in_groups_frac)} of the positions would be padding.",
        )
    if has_fixed_length:
        return (*rows, f"{percent(fixed_frac)} of the positions lie beyond the end of the longest row of their batch.")
    if loader.same_row_length:
        return (
            *rows,
            "Rows have the same length in all inspected batches, although the lengths of the samples differ.",
        )
    return (*rows, "Batches are padded to about their longest row, but the lengths within a batch differ.")
