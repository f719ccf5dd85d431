"""A rule about scores that the loss does not use."""

from __future__ import annotations

from gpulab.analysis.data.loader import training_loader
from gpulab.analysis.data.output_layer import output_layer_spans
from gpulab.rules.data.work_in_spans import Work, work_in_spans
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, Gain, known_numbers
from gpulab.rules.engine.phrases import step_spends
from gpulab.rules.kernels.speedup import faster_kernels_gain, gain_if_significant
from gpulab.wording import percent

_MIN_IGNORED_FRAC = 0.3
_MIN_COST_FRAC = 0.1  # of a step: the work for ignored labels
_REMOVED = (0.5, 1.0)  # of that work: selecting the positions is work, too


def ignored_labels(evidence: Evidence) -> Finding | None:
    """The loss ignores many labels, but the output layer computes the scores of all positions.

    Proof: gpulab reads up to eight batches of each DataLoader, and counts the labels that are the `ignore_index` of the
    loss: of a loss in a variable, or else -100. The last matrix product before the loss and the loss itself, with their
    backward passes, take much of each step.

    Confused with: padding, which takes time in all layers (`padding`); a model that selects positions before its output
    layer, which is recognised; labels that the loop makes, which gpulab does not see.

    What to do: select the positions with a label before the output layer. The loss and the gradients stay the same.
    """
    loader = training_loader(evidence.run)
    if loader is None or loader.ignored_frac is None or not _MIN_IGNORED_FRAC <= loader.ignored_frac < 1:
        return None
    spans = output_layer_spans(evidence.run)
    work = None if spans is None else work_in_spans(evidence, spans)
    if work is None or evidence.step_share(work.cost_ns) * loader.ignored_frac < _MIN_COST_FRAC:
        return None
    gain = _gain(evidence, work, loader.ignored_frac)
    if gain is None:
        return None
    label = loader.ignore_index
    return Finding(
        ledger_parts=("matmul", "kernels") if evidence.on_gpu else ("compute",),
        claim=f"The loss ignores {percent(loader.ignored_frac)} of the labels, but the output layer computes the "
        "scores of all positions.",
        evidence=(
            f"{percent(loader.ignored_frac)} of the labels in a batch are {label}, the ignore_index of the loss.",
            f"{step_spends(evidence, evidence.unprofiled_ns(work.cost_ns))} in the output layer and the loss, forward "
            "and backward.",
        ),
        numbers=known_numbers(ignored_frac=loader.ignored_frac, cost_ns=work.cost_ns),
        advice=f"Select the positions before the output layer: selected = labels != {label}; scores = "
        "head(hidden[selected]); loss = cross_entropy(scores, labels[selected]). The loss and the gradients stay the "
        "same, and the scores of the other positions take no memory. If a model of a library computes the loss itself, "
        "call its body and its head separately.",
        gain=gain,
        confidence=LIKELY,
        spans=work.spans,
    )


def _gain(evidence: Evidence, work: Work, ignored_frac: float) -> Gain | None:
    """Return the gain of an output layer for the selected positions; None if almost nothing is gained."""
    basis = "removing 50 to 100 % of the work for ignored labels; selecting the others is work, too"
    floor_assumes = "no work for ignored labels"
    if evidence.on_gpu:
        worst, best = (1 - removed * ignored_frac for removed in _REMOVED)
        return faster_kernels_gain(evidence, work.cost_ns, (worst, best, best), basis, floor_assumes, spans=work.spans)
    cost_ns = round(ignored_frac * evidence.unprofiled_ns(work.cost_ns))
    return gain_if_significant(evidence.gain_of_removing(cost_ns, basis, floor_assumes, _REMOVED))
