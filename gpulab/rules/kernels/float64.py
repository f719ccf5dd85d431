"""A rule about training in float64 (double precision)."""

from __future__ import annotations

from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, Gain, known_numbers
from gpulab.rules.engine.phrases import step_or_recording, step_spends
from gpulab.rules.kernels.bfloat16_on_cpu import decomposes_matrices
from gpulab.rules.kernels.speedup import faster_kernels_gain
from gpulab.wording import count, number, percent

_MIN_FRAC = 0.3  # of a step in operators or kernels; below, their speed matters little
# How much faster training steps ran in float32. On a CPU (AVX-512): MLPs 2.2x, a transformer layer 1.6x, a GRU 1.8x,
# an LSTM 4.3x, 2D convolutions 5.4x, a small MLP, of which most is dispatch, 1.2x. GPUs of data centres have half the
# rate in float64, all others 1/32 or 1/64.
_SPEEDUPS = {"cpu": (1.4, 5.0), "gpu": (1.5, 16.0)}
_NEEDS_FLOAT64 = frozenset({"LBFGS"})  # small differences of the loss decide on its step length


def float64_weights(evidence: Evidence) -> Finding | None:
    """The weights are float64 (double precision), so all layers compute in float64.

    Proof: most parameter tensors of a trained model are float64, and operators or kernels take much of the step. Data
    from NumPy and pandas are often float64, and a model is then converted with .double() to fit them.

    Confused with: problems that need float64: second derivatives of physical models, decompositions of matrices,
    LBFGS. Loops that decompose matrices or use LBFGS have no finding.

    What to do: convert the data to float32 and leave the model in float32.
    """
    doubles = [model for model in evidence.run.models if "float64" in model.dtypes[:1]]
    kinds = {optimizer.kind for optimizer in evidence.run.optimizers}
    if not doubles or kinds & _NEEDS_FLOAT64 or decomposes_matrices(evidence):
        return None
    busy = tuple(
        part.key for part in evidence.ledger.parts if part.busy and part.key not in ("communication", "copies")
    )
    busy_ns, share = evidence.typical_step.sum_ns(*busy), evidence.part_share(*busy)
    gain = _gain(evidence, busy)
    if share < _MIN_FRAC or gain is None:
        return None
    model = doubles[0]
    name = model.name or model.kind
    return Finding(
        ledger_parts=busy,
        claim=f"{percent(share)} {step_or_recording(evidence)} goes to {_work(evidence)} on float64 tensors: the "
        f"weights of {name} are in double precision.",
        evidence=(
            f"{step_spends(evidence, busy_ns)} in {_work(evidence)}. Most of the "
            f"{count(model.tensors or 0, 'parameter tensor')} of {name} are float64, the default of NumPy; PyTorch "
            "creates weights in float32.",
        ),
        numbers=known_numbers(share_frac=share, busy_ns=busy_ns, tensors=model.tensors),
        advice="Convert the data once, with array.astype(np.float32) or tensor.float(), and remove .double() and "
        "torch.set_default_dtype(torch.float64). Create the optimizer after the model has its final type. Keep float64 "
        "if your problem needs more than 7 digits.",
        gain=gain,
        confidence=LIKELY,
        spans=evidence.ledger.spans[busy[0]],
    )


def _work(evidence: Evidence) -> str:
    return "kernels" if evidence.on_gpu else "operators"


def _gain(evidence: Evidence, busy: tuple[str, ...]) -> Gain | None:
    worst, best = _SPEEDUPS["gpu" if evidence.on_gpu else "cpu"]
    return faster_kernels_gain(
        evidence,
        evidence.ledger.median_ns(*busy),
        (1 / worst, 1 / best, 0.0),
        f"{_work(evidence)} that run {number(worst, 2)} to {number(best, 2)} times as fast in float32",
        f"{_work(evidence)} at no cost",
        calls=not evidence.on_gpu,
    )
