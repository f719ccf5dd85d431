"""A rule about models that compute on the CPU although there is a GPU."""

from __future__ import annotations

from gpulab.analysis.host.cpu_math import CpuMath, cpu_math
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, known_numbers
from gpulab.rules.engine.phrases import idle_share, per_step, step_spends
from gpulab.run_facts import is_from_gpulab

_MIN_CPU_FRAC = 0.20  # small heads and metrics run on the CPU on purpose; a fifth of a step is a mistake


def model_on_cpu(evidence: Evidence) -> Finding | None:
    """There is a GPU, but the CPU computes the model or a large part of it.

    Proof: the model's parameters are on the CPU, or matrix products and convolutions on the CPU take a fifth of the
    step and launch no GPU work.

    Confused with: a cell that is meant to be debugged on the CPU, which has no loop; a GPU whose work could not be
    recorded, which is reported separately; a DataLoader that computes, which is not counted.

    What to do: move the model to the GPU before creating the optimizer, and each batch in the loop.
    """
    if not evidence.run.machine.gpus or evidence.missing_work or evidence.steps.detected_by == "whole run":
        return None
    if evidence.on_gpu and evidence.ledger.idle_frac < _MIN_CPU_FRAC:
        return None
    math = evidence.cached(cpu_math)
    devices = {model.device for model in evidence.run.models if model.device}
    if evidence.on_gpu:
        return _layers_finding(evidence, math)
    is_complete = is_from_gpulab(evidence.run)
    if devices - {"cpu"} or not is_complete or (not devices and not _gpu_was_recorded(evidence)):
        return None
    share = evidence.step_share(math.exposed_ns) if math else 0.0
    if not devices and share < _MIN_CPU_FRAC:
        return None
    return _whole_model_finding(evidence, math, share, bool(devices))


def _gpu_was_recorded(evidence: Evidence) -> bool:
    return "cuda" in evidence.run.recording.activities


def _whole_model_finding(evidence: Evidence, math: CpuMath | None, share: float, placed: bool) -> Finding:
    gpu, usable = evidence.run.machine.gpus[0].name, evidence.run.facts.get("cuda") != "False"
    model = next((model for model in evidence.run.models if model.device == "cpu"), None)
    placement = f"The parameters of {model.name or model.kind} are on the CPU." if model else None
    spent = step_spends(evidence, evidence.unprofiled_ns(math.exposed_ns)) if math else ""
    math_time = f"{spent} in matrix products and convolutions on the CPU." if math else None
    return Finding(
        claim=f"The model runs on the CPU although there is a GPU ({gpu})"
        + ("." if usable else ", which this PyTorch cannot use."),
        evidence=tuple(
            text for text in (placement, "No kernel was launched while events were recorded.", math_time) if text
        ),
        numbers={"cpu_frac": share} if math else {},
        fix=_move_to_gpu_code(evidence) if usable else "",
        advice="A notebook written on a laptop often sets device='cpu' near the top."
        if usable
        else "Install a PyTorch build for CUDA (pytorch.org/get-started) and restart the kernel; "
        "torch.cuda.is_available() must return True.",
        confidence=CERTAIN if placed else LIKELY,
        spans=math.spans if math else evidence.ledger.spans["compute"],
        urgent=True,
    )


def _layers_finding(evidence: Evidence, math: CpuMath | None) -> Finding | None:
    share = evidence.step_share(math.exposed_ns) if math else 0.0
    if math is None or share < _MIN_CPU_FRAC:
        return None
    model_with_cpu_parameters = next(
        (model for model in evidence.run.models if model.device and "cpu" in model.device), None
    )
    placement = (
        (f"Some parameters of {model_with_cpu_parameters.name or model_with_cpu_parameters.kind} are on the CPU.",)
        if model_with_cpu_parameters
        else ()
    )
    return Finding(
        claim=f"{idle_share(evidence, share, 'running layers of the model on the CPU')}.",
        evidence=(
            f"{step_spends(evidence, evidence.unprofiled_ns(math.exposed_ns))} "
            "in matrix products or convolutions on the CPU "
            f"({math.count} {per_step(evidence)}), while the GPU is idle.",
            *placement,
        ),
        numbers=known_numbers(exposed_frac=share, exposed_ns=math.exposed_ns, per_step=math.count),
        fix=_move_to_gpu_code(evidence),
        gain=evidence.gain_of_removing(
            evidence.unprofiled_ns(math.exposed_ns),
            "running these layers on the GPU in at most a fifth of the time",
            "execution of these layers at no cost",
            (0.8, 1.0),
            math.spans,
        ),
        confidence=LIKELY,
        spans=math.spans,
        urgent=True,
    )


def _move_to_gpu_code(evidence: Evidence) -> str:
    return (
        f'{evidence.names.model} = {evidence.names.model}.to("cuda")  # before you create the optimizer\n\n'
        '# in the loop\ninputs, targets = inputs.to("cuda"), targets.to("cuda")'
    )
