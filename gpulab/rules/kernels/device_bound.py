"""A rule about a device that is fully used."""

from __future__ import annotations

from gpulab.analysis.kernels.interior_kernels import interior_kernels
from gpulab.analysis.kernels.roofline import FlopsUtilisation, flops_utilisation, operator_work_of_run
from gpulab.analysis.steps.largest_operators import largest_operators
from gpulab.hardware.precision import Precision
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, Finding, known_numbers
from gpulab.rules.engine.phrases import per_step, range_over_steps, step_or_recording
from gpulab.rules.kernels.bfloat16_on_cpu import bfloat16_may_help
from gpulab.wording import metric, percent

BUSY_PARTS = ("matmul", "kernels", "communication", "compute")
_MIN_COMMUNICATION_FRAC = 0.05  # less communication is not mentioned
_BUSY_FRAC = 0.85  # above it, data loading and dispatch are not the limit
_KNOWN_FRAC = 0.8  # of the matrix kernels' time; with less the FLOPs of a step are unknown
_NEAR_PEAK_FRAC = 0.6  # of peak FLOP/s; the best GEMM libraries reach 0.8
_MOST_OPERATORS, _MIN_OPERATOR = 3, 0.05  # named in the evidence, with their least share of a step
_PRECISIONS = {Precision.FLOAT32: "float32", Precision.TF32: "TF32", Precision.HALF: "half precision"}


def device_bound(evidence: Evidence) -> Finding | None:
    """The device works nearly all the time: data loading and the host are not the limit.

    This rule informs and predicts nothing: only faster work (precision, fusion, a better algorithm) shortens the step.

    Proof: kernels and collectives cover the step. The evidence lists the kinds of kernels, the largest operators, and,
    if sizes were recorded, the fraction of the GPU's peak FLOP/s that the model uses (MFU).

    Confused with: a GPU that is busy with exposed copies, which are not counted here. Exposed communication is listed
    separately, as it is not compute.

    What to do: the other findings name ways to make the work itself faster; if there are none, the loop is as fast as
    this device allows.
    """
    # A CPU does nothing while it waits for other ranks.
    parts = BUSY_PARTS if evidence.on_gpu else ("compute",)
    busy, communication = evidence.part_share(*parts), evidence.part_share("communication")
    if busy < _BUSY_FRAC:
        return None
    device = "GPU" if evidence.on_gpu else "CPU"
    subject = f"The {device} computes {percent(busy)} {step_or_recording(evidence)}"
    if evidence.on_gpu and communication >= _MIN_COMMUNICATION_FRAC:
        exposed = f"{percent(communication)} is exposed communication"
        subject = f"The {device} works {percent(busy)} {step_or_recording(evidence)} ({exposed})"
    utilised = _utilisation(evidence)
    return Finding(
        claim=f"{subject}: data loading and the host are not the limit.",
        evidence=(
            f"Device work: {range_over_steps(evidence, *parts)}.",
            *_kernel_shares(evidence),
            *_operator_shares(evidence),
            *_mfu_evidence(evidence, utilised),
        ),
        numbers=known_numbers(
            busy_frac=busy,
            communication_frac=communication,
            mfu_frac=utilised.step_frac if utilised else None,
            kernel_frac=utilised.kernel_frac if utilised else None,
        ),
        advice=_speedup_advice(evidence, utilised),
        confidence=CERTAIN,
    )


def _kernel_shares(evidence: Evidence) -> tuple[str, ...]:
    if not evidence.on_gpu:
        return ()
    parts = (("matmul", "matrix products and attention"), ("kernels", "other kernels"))
    shares = [
        f"{percent(evidence.part_share(key))} {label}" for key, label in parts if evidence.part_share(key) >= 0.005
    ]
    return (f"Of each step: {', '.join(shares)}.",) if shares else ()


def _operator_shares(evidence: Evidence) -> tuple[str, ...]:
    operators = [cost for cost in evidence.cached(largest_operators)[:_MOST_OPERATORS] if cost.frac >= _MIN_OPERATOR]
    shares = [f"{cost.name} {percent(cost.frac)}" for cost in operators]
    return (f"The largest operators: {', '.join(shares)}.",) if shares else ()


def _utilisation(evidence: Evidence) -> FlopsUtilisation | None:
    kernels = evidence.cached(interior_kernels)
    if kernels is None:
        return None
    utilised = flops_utilisation(kernels, evidence.step_ns, evidence.cached(operator_work_of_run))
    return utilised if utilised is not None and utilised.known_frac >= _KNOWN_FRAC else None


def _mfu_evidence(evidence: Evidence, utilised: FlopsUtilisation | None) -> tuple[str, ...]:
    if utilised is None:
        return ()
    return (
        f"{metric(utilised.flops, 'FLOP')} {per_step(evidence)}, mostly in {_PRECISIONS[utilised.precision]}: MFU "
        f"{percent(utilised.step_frac)}, relative to the {metric(utilised.peak, 'FLOP/s')} of this GPU "
        f"({utilised.spec.name}); {percent(utilised.kernel_frac)} while the matrix kernels run.",
    )


def _speedup_advice(evidence: Evidence, utilised: FlopsUtilisation | None) -> str:
    if not evidence.on_gpu:
        bfloat16 = "bfloat16 if this CPU supports it, " if bfloat16_may_help(evidence) else ""
        return f"To speed it up: {bfloat16}torch.compile, a smaller model, or a GPU."
    if utilised is not None and utilised.step_frac >= _NEAR_PEAK_FRAC:
        return "This is close to the peak of the GPU: what remains is a smaller model, lower precision or a larger GPU."
    return "To speed it up: act on the other findings; beyond them, torch.compile, a smaller model, or a larger GPU."
