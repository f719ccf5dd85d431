"""A rule about float32 matrix products on a CPU that has bfloat16 instructions."""

from __future__ import annotations

import re

from gpulab.analysis.host.cpu_math import bfloat16_layers
from gpulab.analysis.host.gradients import unused_gradients_of
from gpulab.analysis.steps.forward_backward import backward_passes
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, Gain, Unjudged, known_numbers
from gpulab.rules.engine.pasted_names import UserNames, is_variable
from gpulab.rules.engine.phrases import sentences, step_or_recording, step_spends
from gpulab.rules.kernels.speedup import faster_kernels_gain
from gpulab.run import Model
from gpulab.wording import count, duration, number, percent

_MIN_FRAC = 0.35  # of a step in long layers; with less, the conversions between the two types cost as much as they save
# How much faster layers run under autocast, conversions included. Seven training loops on a CPU with AVX-512 BF16:
# 1.5x to 2.3x. AMX has eight times the peak of AVX-512 BF16, of which layers of ordinary size reach a part.
_SPEEDUPS = {"avx512_bf16": (1.4, 2.4), "amx_bf16": (1.4, 6.0)}
_OTHER_SPEEDUPS = (1.2, 2.5)  # other CPUs, such as ARM's: not measured
# If the layers of a run were timed in both types: what their times may vary by, and how much of the time between the
# layers, whose tensors are half as large in bfloat16, shrinks as theirs does. Of 35 training loops, 20 are worth the
# change by this: the measured gain is in the range in 15 of them, and one becomes slower.
_TIMING_ERROR = 1.05
_OTHER_GAIN = 0.5
_LEAST_GAIN = 1.05  # at worst
# Depthwise convolutions ran 0.64x to 0.82x as fast in bfloat16 on this CPU, and a MobileNet as a whole 0.72x.
_MANY_DEPTHWISE = 0.15  # of the layers with weights
_CAST_NODE = "ToCopyBackward0"  # autocast converts every weight, and the backward pass converts its gradient back
_DECOMPOSITION = re.compile(r"^aten::(_?linalg_(cholesky|eigh|eig|svd|qr|inv|solve|lu|lstsq)|cholesky|lu_solve)")
_FRAMEWORK_SETTINGS = {
    "transformers": "TrainingArguments(bf16=True, use_cpu=True)",  # without use_cpu, it asks for a GPU
    "lightning": 'Trainer(precision="bf16-mixed")',
    "accelerate": 'Accelerator(mixed_precision="bf16")',
}


_AROUND_ALL = (
    'Run the forward passes of all models within `with torch.autocast("cpu", dtype=torch.bfloat16):`, also of those '
    "that are not trained."
)
_AROUND_METHODS = (
    'Call the methods of the model within `with torch.autocast("cpu", dtype=torch.bfloat16):`; it has no forward() '
    "that code could wrap."
)


def no_bfloat16_on_cpu(evidence: Evidence) -> Finding | Unjudged | None:
    """Matrix products and convolutions run in float32 on a CPU that has bfloat16 instructions.

    Proof: long layers (matrix products, convolutions, attention, LSTMs of oneDNN) take much of the step, the parameters
    are float32, the backward pass converts no weights, and the CPU has such instructions (AVX-512 BF16, AMX, ARM's
    bf16).

    After the recorded code, gpulab times the layers of a step in both types, with tensors of the same shapes, and
    reports this only if they are faster in bfloat16. Layers in code that torch.compile has compiled are not timed.

    Confused with: autocast that is already on; depthwise convolutions, which are slower in bfloat16; layers that are so
    small that converting them costs more than it saves; a model that could run on a GPU (`model_on_cpu`).

    What to do: use autocast around the forward pass. bfloat16 has the range of float32 and needs no gradient scaler.
    """
    run = evidence.run
    instructions = run.facts.get("cpu_bfloat16", "none")
    if evidence.on_gpu or instructions == "none" or not evidence.is_training:
        return None
    layers = evidence.cached(bfloat16_layers)
    trained = [model for model in run.models if "float32" in model.dtypes[:1]]
    if layers is None or not layers.exposed_ns or not trained or _is_unsuited(evidence, trained):
        return None
    layers_ns = evidence.unprofiled_ns(layers.exposed_ns, "compute")
    share = layers_ns / evidence.step_ns
    gain = _gain(evidence, layers.exposed_ns, instructions)
    if gain is None or (run.layer_times is None and share < _MIN_FRAC):
        return None
    return Finding(
        ledger_parts=("compute",),
        claim=f"{percent(share)} {step_or_recording(evidence)} goes to float32 layers on a CPU that has bfloat16 "
        "instructions.",
        evidence=(_layers_text(evidence, layers_ns, layers.count), *_times_text(evidence)),
        numbers=known_numbers(share_frac=share, cost_ns=layers_ns, layers=layers.count),
        fix=cpu_autocast_code(trained) if _covers_all_layers(evidence, trained) else "",
        advice=_advice(evidence, trained),
        gain=gain,
        confidence=SUSPECT if run.layer_times is None else LIKELY,
        spans=layers.spans,
    )


def _is_unsuited(evidence: Evidence, trained: list[Model]) -> bool:
    """Whether bfloat16 is in use already, may be too inexact, or is slow for depthwise convolutions, untimed."""
    is_timed = evidence.run.layer_times is not None
    are_depthwise = any((model.depthwise_frac or 0.0) >= _MANY_DEPTHWISE for model in trained)
    return (are_depthwise and not is_timed) or _converts_weights(evidence) or decomposes_matrices(evidence)


def _layers_text(evidence: Evidence, layers_ns: int, layers: int) -> str:
    return (
        f"{step_spends(evidence, layers_ns)} in {layers:,} matrix products, convolutions or recurrent layers. The CPU "
        f"supports {evidence.run.facts['cpu_bfloat16']}; the weights are float32, and autocast is off."
    )


def _times_text(evidence: Evidence) -> tuple[str, ...]:
    times = evidence.run.layer_times
    if times is None or times.float32_ns is None or times.bfloat16_ns is None:
        return ()
    return (
        f"After the recorded code, {count(times.layers, 'layer')} of a step ran alone, forward and backward, on this "
        f"machine: {duration(times.float32_ns)} in float32, {duration(times.bfloat16_ns)} in bfloat16.",
    )


def bfloat16_may_help(evidence: Evidence) -> bool:
    """Whether nothing speaks against bfloat16 on this CPU: its instructions, measured times, or matrices to decompose.

    In traces of other programs, the instructions are unknown.
    """
    times = evidence.run.layer_times
    is_slower = times is not None and (times.bfloat16_ns or 0) >= (times.float32_ns or float("inf"))
    return evidence.run.facts.get("cpu_bfloat16") != "none" and not is_slower and not decomposes_matrices(evidence)


def decomposes_matrices(evidence: Evidence) -> bool:
    """Whether a step decomposes or inverts matrices: products that feed them need the precision of float32."""
    names = evidence.run.event_rows.text("name").vocabulary
    return any(_DECOMPOSITION.match(name) for name in names)


def _converts_weights(evidence: Evidence) -> bool:
    """Whether the backward passes of a step convert gradients, as they do under autocast."""
    passes, steps = backward_passes(evidence.run), evidence.steps
    if passes is None:
        return False
    casts = passes.count_nodes(lambda word: word.endswith(_CAST_NODE))[steps.interior_mask(passes.spans.start_ns)]
    return bool(casts.sum() >= steps.interior.sum())


def _gain(evidence: Evidence, layers_ns: int, instructions: str) -> Gain | None:
    measured = _measured_fracs(evidence, layers_ns)
    if measured is not None:
        gain = faster_kernels_gain(
            evidence,
            layers_ns,
            (*measured, 0.0),
            "the measured times of the layers in float32 and in bfloat16",
            "layers at no cost",
            calls=True,
        )
        return gain if gain is not None and gain.worst_speedup >= _LEAST_GAIN else None
    worst, best = _SPEEDUPS.get(instructions, _OTHER_SPEEDUPS)
    return faster_kernels_gain(
        evidence,
        layers_ns,
        (1 / worst, 1 / best, 0.0),
        f"layers that run {number(worst, 2)} to {number(best, 2)} times as fast in bfloat16",
        "layers at no cost",
        calls=True,
    )


def _measured_fracs(evidence: Evidence, layers_ns: int) -> tuple[float, float] | None:
    """Return which fraction of the layers' traced time remains in bfloat16, at worst and at best; None if not timed.

    At best, half of the time between the layers shrinks as theirs does, because its tensors are half as large.
    """
    times = evidence.run.layer_times
    if times is None or not times.float32_ns or times.bfloat16_ns is None or times.bfloat16_chained_ns is None:
        return None
    fracs = sorted((times.bfloat16_ns / times.float32_ns, times.bfloat16_chained_ns / times.float32_ns))
    saved_frac = 1 - fracs[0] / _TIMING_ERROR
    other_ns = max(0, evidence.typical_step.sum_ns("compute") - layers_ns)
    best = 1 - saved_frac * (1 + _OTHER_GAIN * other_ns / layers_ns)
    # Layers that were not timed, such as those of functions, may become no faster.
    timed_frac = min(1.0, times.float32_ns / max(1, evidence.unprofiled_ns(layers_ns, "compute")))
    return 1 - timed_frac * (1 - fracs[1] * _TIMING_ERROR), max(0.0, best)


def _framework(evidence: Evidence) -> str:
    return next((loader.framework for loader in evidence.run.loaders if loader.framework), "")


def _runs_by_forward(evidence: Evidence, models: list[Model]) -> bool:
    """Whether the loop calls the models themselves; training_step() in Lightning may call their layers instead."""
    return _framework(evidence) != "lightning" and all(model.has_forward is not False for model in models)


def _runs_other_models(evidence: Evidence, models: list[Model]) -> bool:
    """Whether layers run outside these models: those of a teacher, with or without gradients."""
    parts_of = tuple(f"{model.name}." for model in models if model.name)
    others = [model for model in evidence.run.frozen_models if not model.name.startswith(parts_of)]
    return bool(others) or evidence.cached(unused_gradients_of) is not None


def _covers_all_layers(evidence: Evidence, models: list[Model]) -> bool:
    return _runs_by_forward(evidence, models) and not _runs_other_models(evidence, models)


def _advice(evidence: Evidence, models: list[Model]) -> str:
    has_code = _covers_all_layers(evidence, models)
    setting = _FRAMEWORK_SETTINGS.get(_framework(evidence))
    around = "" if _runs_by_forward(evidence, models) else _AROUND_METHODS
    if not around and _runs_other_models(evidence, models):
        around = _AROUND_ALL
    return sentences(
        f"{'Instead of this code, you can set' if has_code else 'Set'} {setting}." if setting else around,
        "bfloat16 has the range of float32 and a mantissa of 8 bits. The weights stay in float32; watch the loss over "
        "the first few hundred steps.",
    )


def cpu_autocast_code(models: list[Model]) -> str:
    """Return code that runs the forward pass of these models in bfloat16 and returns float32, as losses expect."""
    recorded = (model.name for model in models if model.name and is_variable(model.name))
    names = list(dict.fromkeys(recorded)) or [UserNames.model]
    lines = [
        line
        for name in names
        for line in (
            f'{name}.forward = torch.autocast("cpu", dtype=torch.bfloat16)({name}.forward)',
            f"{name}.register_forward_hook(to_float32)",
        )
    ]
    return "\n".join(
        [
            "import torch",
            "",
            "",
            "def to_float32(module, arguments, output):",
            "    return output.float() if isinstance(output, torch.Tensor) else output",
            "",
            "",
            *lines,
        ]
    )
