"""A rule about dense gradients of large embedding tables."""

from __future__ import annotations

from gpulab.analysis.kernels.embedding_gradients import EmbeddingGradients, embedding_gradients
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, known_numbers
from gpulab.rules.engine.phrases import sentences, step_or_recording, step_spends
from gpulab.wording import percent, percent_range

_MIN_ELEMENTS = 500_000
_MIN_SHARE = 0.15  # of a step
_INDEX_BYTES = 8
_MAX_TOUCHED_FRAC = 0.25  # of the rows in a batch; sparse gradients are sorted, and cost more per row
# Removed fraction of the work on the tables: sparse gradients of the rows in the batch are sorted and added up.
_REMOVED = (0.4, 0.9)
_REMOVED_OF_ADAM = (0.2, 0.85)  # SparseAdam is not fused


def dense_embedding_gradients(evidence: Evidence) -> Finding | None:
    """The gradients of a large embedding table are dense: each step writes and updates all rows, not those of a batch.

    Proof: the model has nn.Embedding layers with sparse=False and at least 500,000 elements, their backward nodes and
    their share of the optimizer step take much of the step, and a batch is too small to use most rows.

    Confused with: tables that another layer shares, as a language model's output layer does (their gradients are dense
    anyway); an optimizer that is slow for other reasons (`unfused_optimizer`).

    What to do: sparse=True. SGD without momentum and Adagrad then give the same results. torch.optim.SparseAdam updates
    the rows of the batch only, which is not the same as Adam, and often as good.
    """
    gradients = evidence.cached(embedding_gradients)
    if gradients is None or gradients.elements < _MIN_ELEMENTS:
        return None
    touched_frac = _touched_frac(evidence, gradients)
    if touched_frac > _MAX_TOUCHED_FRAC:
        return None
    cost_ns = evidence.unprofiled_ns(gradients.backward_ns + gradients.update_ns, "compute", "dispatch")
    share = cost_ns / evidence.step_ns
    if share < _MIN_SHARE:
        return None
    is_exact = all(optimizer.accepts_sparse for optimizer in evidence.run.optimizers)
    removed_fracs = _REMOVED if is_exact else _REMOVED_OF_ADAM
    return Finding(
        claim=f"{percent(share)} {step_or_recording(evidence)} goes to dense gradients of embedding tables: all "
        "rows are written and updated, although a batch uses few of them.",
        evidence=(
            f"{step_spends(evidence, cost_ns)} on dense gradients of embeddings and on their share of the optimizer "
            f"step ({percent(gradients.elements_frac)} of the elements that it updates).",
            _size_text(gradients),
        ),
        numbers=known_numbers(share=share, elements=gradients.elements, rows=gradients.rows, cost_ns=cost_ns),
        fix="" if gradients.clips_gradients or not is_exact else sparse_code(evidence),
        advice=_advice(gradients, is_exact),
        gain=evidence.gain_of_removing(
            cost_ns,
            f"removing {percent_range(*removed_fracs)} of the work on all rows",
            "no work on rows outside the batch",
            removed_fracs,
        ),
        confidence=LIKELY if touched_frac else SUSPECT,
        spans=gradients.spans,
        caveats=() if is_exact else ("Rows outside the batch then keep their values, also with momentum or decay.",),
    )


def sparse_code(evidence: Evidence) -> str:
    """Return code that makes the gradients of all embedding layers of the model sparse."""
    return (
        f"for layer in {evidence.names.model}.modules():\n"
        "    if isinstance(layer, (torch.nn.Embedding, torch.nn.EmbeddingBag)):\n"
        "        layer.sparse = True"
    )


def _size_text(gradients: EmbeddingGradients) -> str:
    return f"The tables have {gradients.elements:,} elements; the largest has {gradients.rows:,} rows."


def _advice(gradients: EmbeddingGradients, is_exact: bool) -> str:
    return sentences(
        "Use sparse gradients, nn.Embedding(..., sparse=True): results stay the same."
        if is_exact
        else "Use nn.Embedding(..., sparse=True) for the tables, with torch.optim.SparseAdam for their weights and the "
        "present optimizer for the others.",
        "clip_grad_norm_ does not accept sparse gradients: clip the other parameters only." * gradients.clips_gradients,
    )


def _touched_frac(evidence: Evidence, gradients: EmbeddingGradients) -> float:
    """Return the share of the rows that a batch can use at most, by its size in memory; 0 if that is unknown."""
    batch_bytes = max((loader.batch_bytes or 0 for loader in evidence.run.loaders), default=0)
    return batch_bytes / _INDEX_BYTES / max(1, gradients.rows)
