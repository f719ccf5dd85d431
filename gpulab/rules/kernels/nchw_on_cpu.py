"""A rule about convolutions on a CPU that process images in the format NCHW."""

from __future__ import annotations

from gpulab.analysis.host.cpu_math import convolutions
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, known_numbers
from gpulab.rules.engine.pasted_names import is_variable
from gpulab.rules.engine.phrases import step_or_recording, step_spends
from gpulab.rules.kernels.speedup import faster_kernels_gain
from gpulab.run import Model
from gpulab.wording import number, percent

_MIN_FRAC = 0.35  # of a step in convolutions
_MANY_DEPTHWISE = 0.15  # of the layers with weights
# How much faster convolutions and what follows them ran in channels_last, of the time of the convolutions alone.
# `python benchmarks/channels_last.py` and eleven more networks on one thread (AMD EPYC, torch 2.13): 1.09x to 2.4x,
# with many depthwise convolutions 1.6x to 5.2x. With GroupNorm or InstanceNorm, steps were slower (0.75x to 0.91x).
_SPEEDUP, _DEPTHWISE_SPEEDUP = (1.08, 2.5), (1.5, 5.5)
_VIEWS = (
    "Convert the model with model.to(memory_format=torch.channels_last). The code that it runs may call view(), which "
    "raises an error for some tensors in this format: replace it with reshape() or flatten()."
)


def nchw_on_cpu(evidence: Evidence) -> Finding | None:
    """Convolutions on the CPU process images in NCHW, the default memory format, instead of channels_last.

    Proof: convolutions take much of the step, all of the model's convolutions are two-dimensional, and their weights
    are in NCHW. oneDNN computes convolutions in blocks of channels; from channels_last, it needs fewer conversions,
    and batch normalisation, pooling and elementwise operators read memory in order.

    Confused with: models with GroupNorm or InstanceNorm, which are slower in channels_last; compiled models, for which
    the compiler chooses the format; a model that could run on a GPU (`model_on_cpu`).

    What to do: convert the model once, after it is created. Convolutions then also return channels_last, so the rest
    of the model follows. Values stay the same, apart from rounding.
    """
    model = _model_in_nchw(evidence)
    cost = evidence.cached(convolutions)
    if evidence.on_gpu or model is None or cost is None or not evidence.is_training:
        return None
    cost_ns = evidence.unprofiled_ns(cost.exposed_ns, "compute")
    share = cost_ns / evidence.step_ns
    depthwise = (model.depthwise_frac or 0.0) >= _MANY_DEPTHWISE
    worst, best = _DEPTHWISE_SPEEDUP if depthwise else _SPEEDUP
    gain = faster_kernels_gain(
        evidence,
        cost.exposed_ns,
        (1 / worst, 1 / best, 0.0),
        f"training steps that saved as much as convolutions {number(worst, 2)} to {number(best, 2)} times as fast",
        "convolutions at no cost",
        calls=True,
    )
    if share < _MIN_FRAC or gain is None:
        return None
    return Finding(
        ledger_parts=("compute",),
        claim=f"{percent(share)} {step_or_recording(evidence)} goes to convolutions in the memory format NCHW; on a "
        "CPU, channels_last is faster.",
        evidence=(
            f"{step_spends(evidence, cost_ns)} in {cost.count:,} calls of convolutions, forward and backward.",
            f"The {model.image_convolutions} 2D convolutions of {model.name or model.kind} have weights in NCHW.",
        ),
        numbers=known_numbers(share_frac=share, cost_ns=cost_ns, convolutions=model.image_convolutions),
        fix=_code(model),
        advice=_VIEWS if model.calls_view else "",
        gain=gain,
        confidence=LIKELY,
        spans=cost.spans,
    )


def _model_in_nchw(evidence: Evidence) -> Model | None:
    """The trained model if it is the only one, its 2D convolutions are in NCHW, and channels_last suits its layers."""
    models = evidence.run.models
    if len(models) != 1:
        return None
    model = models[0]
    suits = model.channels_last is False and model.channel_group_norms == 0 and not model.compiled
    return model if suits and model.device == "cpu" else None


def _code(model: Model) -> str:
    """Return code that converts the model; none if code of the loop may refuse the format, or no variable holds it."""
    if model.calls_view is not False or not model.name or not is_variable(model.name):
        return ""
    return f"import torch\n\n{model.name} = {model.name}.to(memory_format=torch.channels_last)"
