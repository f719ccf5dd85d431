"""A rule about where the model computes."""

from __future__ import annotations

from gpulab.analysis.host.cpu_math import CpuMath, cpu_math
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, figures
from gpulab.rules.engine.phrases import duration_in_step, of_each_step
from gpulab.wording import percent

CPU_WORTH_FRAC = 0.20  # small heads and metrics are computed on the CPU on purpose; from a fifth on it is a mistake


def model_on_cpu(evidence: Evidence) -> Finding | None:
    """There is a GPU, and the CPU computes the model, or a large part of it.

    Proof: the model's parameters lie on the CPU, or matrix products and convolutions take a fifth of the step and
    hold no call to the GPU. Confused with: a cell that is meant to be debugged on the CPU, which has no loop; a GPU
    whose work could not be recorded, which is said apart; a DataLoader that computes, which is not counted. What to
    do: move the model before the optimizer is made, and each batch in the loop.
    """
    if not evidence.run.machine.gpus or evidence.missing_work or evidence.steps.found_by == "whole run":
        return None
    if evidence.on_gpu and evidence.ledger.idle_frac < CPU_WORTH_FRAC:
        return None
    math = evidence.once(cpu_math)
    placed = {model.device for model in evidence.run.models if model.device}
    if evidence.on_gpu:
        return _part_of_it(evidence, math)
    here = evidence.run.source.how in ("measured", "virtual")
    if placed - {"cpu"} or not here or (not placed and not _recorded_gpu(evidence)):
        return None
    share = evidence.step_share(math.exposed_ns) if math else 0.0
    if not placed and share < CPU_WORTH_FRAC:
        return None
    return _all_of_it(evidence, math, share, bool(placed))


def _recorded_gpu(evidence: Evidence) -> bool:
    return "cuda" in evidence.run.recording.activities


def _all_of_it(evidence: Evidence, math: CpuMath | None, share: float, placed: bool) -> Finding:
    gpu, usable = evidence.run.machine.gpus[0].name, evidence.run.facts.get("cuda") != "False"
    model = next((each for each in evidence.run.models if each.device == "cpu"), None)
    where = f"The parameters of {model.name or model.kind} lie on the CPU." if model else None
    exposed = duration_in_step(evidence, math.exposed_ns) if math else ""
    spent = f"{exposed} in matrix products and convolutions of the CPU." if math else None
    return Finding(
        claim=f"The model computes on the CPU, though there is a GPU ({gpu})"
        + ("." if usable else ", which this PyTorch cannot use."),
        evidence=tuple(text for text in (where, "No kernel was launched while events were recorded.", spent) if text),
        numbers={"cpu_frac": share} if math else {},
        fix=_move(evidence) if usable else "",
        advice="A notebook that was written on a laptop often says device='cpu' near its top."
        if usable
        else "Install a PyTorch built for CUDA (pytorch.org/get-started), then restart the kernel; "
        "torch.cuda.is_available() must say True.",
        confidence=CERTAIN if placed else LIKELY,
        shown_by=math.spans if math else evidence.ledger.spans["compute"],
        urgent=True,
    )


def _part_of_it(evidence: Evidence, math: CpuMath | None) -> Finding | None:
    share = evidence.step_share(math.exposed_ns) if math else 0.0
    if math is None or share < CPU_WORTH_FRAC:
        return None
    left = next((each for each in evidence.run.models if each.device and "cpu" in each.device), None)
    whose = (f"Some parameters of {left.name or left.kind} lie on the CPU.",) if left else ()
    return Finding(
        claim=f"GPU idle {percent(share)} {of_each_step(evidence)} while the CPU computes layers of the model.",
        evidence=(
            f"Matrix products or convolutions on the CPU, {math.count} in every step: "
            f"{duration_in_step(evidence, math.exposed_ns)} with the GPU idle.",
            *whose,
        ),
        numbers=figures(exposed_frac=share, exposed_ns=math.exposed_ns, per_step=math.count),
        fix=_move(evidence),
        gain=evidence.bounded(
            evidence.plain_ns(math.exposed_ns),
            "the CPU's layers, done by the GPU in a fifth of the time or less",
            "even free layers",
            (0.8, 1.0),
            math.spans,
        ),
        confidence=LIKELY,
        shown_by=math.spans,
        urgent=True,
    )


def _move(evidence: Evidence) -> str:
    return (
        f'{evidence.names.model} = {evidence.names.model}.to("cuda")  # before the optimizer is made\n\n'
        '# in the loop\ninputs, targets = inputs.to("cuda"), targets.to("cuda")'
    )
