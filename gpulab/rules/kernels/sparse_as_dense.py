"""A rule about matrices of mostly zeros that are stored and multiplied as dense ones."""

from __future__ import annotations

from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, known_numbers
from gpulab.rules.engine.phrases import step_or_recording
from gpulab.run import SparseOperand
from gpulab.wording import count, duration, number, percent

_MIN_FRAC, _MAX_FRAC = 0.06, 0.95  # of a step in these products
_MIN_SPEEDUP = 1.3  # of the products
_REMOVED = (0.75, 1.0)  # of the measured difference: at worst and at best
_PASSES = 2  # forward and backward pass of a product: each multiplies once, as the matrix needs no gradient
_MOST_LISTED = 4


def sparse_as_dense(evidence: Evidence) -> Finding | None:
    """A matrix whose elements are almost all zero is stored as a dense one, and a module multiplies with it.

    Proof: a module got a dense float32 matrix of which at least 95 % of the elements are zero, and returned a matrix
    with as many rows. After the recorded code, the product of matrices of these sizes was timed with the first one
    dense and as a sparse tensor, forward and backward; the sparse one was faster. Checked on CPUs only.

    Confused with: masks of attention, which are added instead of multiplied; activations after ReLU, which change in
    every step and need gradients; modules that use the matrix in another way, such as indexing.

    What to do: convert the matrix once with to_sparse(), and multiply by torch.sparse.mm() or @. For one-hot codes
    use nn.Embedding, for bags of words nn.EmbeddingBag. Results stay the same, apart from rounding.
    """
    operands = [operand for operand in evidence.run.sparse_operands if _speedup(operand) >= _MIN_SPEEDUP]
    if not operands or evidence.on_gpu:
        return None
    dense_ns = sum(operand.dense_ns or 0 for operand in operands)
    sparse_ns = sum(operand.sparse_ns or 0 for operand in operands)
    cost_ns = min(sum(_cost_ns(operand, evidence.step_ns) for operand in operands), round(_MAX_FRAC * evidence.step_ns))
    share = cost_ns / evidence.step_ns
    if share < _MIN_FRAC:
        return None
    saved_frac = 1 - sparse_ns / dense_ns
    first = operands[0]
    return Finding(
        ledger_parts=("compute",),
        claim=f"{percent(share)} {step_or_recording(evidence)} goes to products with dense matrices of mostly zeros: "
        f"{_matrix(first)} has {percent(first.zero_frac or 0.0, 1)} zeros.",
        evidence=tuple(_operand_text(operand) for operand in operands[:_MOST_LISTED]),
        numbers=known_numbers(
            share_frac=share, dense_ns=dense_ns, sparse_ns=sparse_ns, zero_frac=first.zero_frac, calls=first.calls
        ),
        advice=_advice(first),
        gain=evidence.gain_of_removing(
            cost_ns,
            f"the measured times of these products: {number(dense_ns / sparse_ns, 1)} times as fast if sparse",
            "products at no cost",
            (_REMOVED[0] * saved_frac, _REMOVED[1] * saved_frac),
        ),
        confidence=LIKELY if all(operand.constant for operand in operands) else SUSPECT,
    )


def _cost_ns(operand: SparseOperand, step_ns: int) -> int:
    """Return what the products cost in a step: as measured alone, but at most what the calls of the module allow."""
    dense_ns = operand.dense_ns or 0
    return dense_ns if operand.step_frac is None else min(dense_ns, round(_PASSES * operand.step_frac * step_ns))


def _speedup(operand: SparseOperand) -> float:
    return (operand.dense_ns or 0) / operand.sparse_ns if operand.sparse_ns else 0.0


def _matrix(operand: SparseOperand) -> str:
    return operand.matrix or f"a matrix that {operand.name or operand.kind} gets"


def _operand_text(operand: SparseOperand) -> str:
    place = f" at {operand.location}" if operand.location else ""
    return (
        f"{operand.name or operand.kind} gets {operand.matrix or 'a matrix'} ({operand.rows or 0:,} x "
        f"{operand.columns or 0:,}, {percent(operand.zero_frac or 0.0, 1)} zeros) in "
        f"{count(operand.calls or 0, 'call')} per step{place}. Products of this size, forward and backward, took "
        f"{duration(operand.dense_ns or 0)} dense and {duration(operand.sparse_ns or 0)} sparse, alone on this machine."
    )


def _advice(operand: SparseOperand) -> str:
    name = operand.matrix or "matrix"
    if not operand.constant:
        return (
            "Each batch has another matrix, and its conversion takes time: store the data in a sparse format and make "
            "sparse batches. For one-hot codes, pass the indices to nn.Embedding; for bags of words, pass indices and "
            "weights to nn.EmbeddingBag."
        )
    return (
        f"Convert it once, before the loop: {name} = {name}.to_sparse(). torch.mm({name}, x), torch.sparse.mm(), "
        f"{name} @ x and nn.Linear accept this format; dropout and indexing do not. For one-hot codes, use "
        "nn.Embedding; for bags of words, nn.EmbeddingBag."
    )
