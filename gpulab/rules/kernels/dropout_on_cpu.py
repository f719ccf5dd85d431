"""A rule about dropout on a CPU, whose random numbers take long."""

from __future__ import annotations

from gpulab.analysis.host.cpu_math import dropouts
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, known_numbers
from gpulab.rules.engine.pasted_names import is_variable
from gpulab.rules.engine.phrases import sentences, step_or_recording, step_spends
from gpulab.rules.kernels.speedup import faster_kernels_gain
from gpulab.run import DropoutTimes, Model
from gpulab.wording import count, duration, number, percent

_MIN_FRAC = 0.06  # of a step in dropout
_MIN_SPEEDUP = 1.25  # of dropout, forward and backward
_REALISED = 0.6  # of the measured saving, at worst
_DISTRIBUTION = (
    "The mask has the same distribution, but other random numbers: losses differ slightly from those of earlier runs."
)
_PICKLED = "To load a model that torch.save(model) saved whole, a program must define this class, too."


def dropout_on_cpu(evidence: Evidence) -> Finding | None:
    """Dropout on the CPU takes much of a step: PyTorch draws a Bernoulli number for each element, which is slow.

    Proof: the time of dropout outside other operators, and the dropout of a step timed alone after the recorded code,
    forward and backward: as PyTorch computes it, and with uniform random numbers that are compared with the rate. With
    rate 0.5, the latter is about three times as fast; with 0.1, twice (`python -m benchmarks.dropout`).

    Confused with: dropout within attention or recurrent layers, which no module of the program computes; dropout of
    whole channels (`nn.Dropout2d`), which draws few numbers; a model that could run on a GPU (`model_on_cpu`).

    What to do: draw the mask with torch.rand_like. The results have the same distribution. Less dropout, or none where
    the model does not overfit, saves more.
    """
    times, cost = evidence.run.dropout_times, evidence.cached(dropouts)
    if evidence.on_gpu or cost is None or times is None or not evidence.is_training:
        return None
    if not times.bernoulli_ns or not times.uniform_ns or times.bernoulli_ns < _MIN_SPEEDUP * times.uniform_ns:
        return None
    cost_ns = evidence.unprofiled_ns(cost.exposed_ns, "compute")
    share = cost_ns / evidence.step_ns
    gain = faster_kernels_gain(
        evidence,
        cost.exposed_ns,
        (1 - _REALISED * _saved_frac(times), 1 - _saved_frac(times), 0.0),
        f"the measured times of dropout: {number(times.bernoulli_ns / times.uniform_ns, 1)} times as fast with another "
        "mask",
        "dropout at no cost",
        calls=True,
    )
    if share < _MIN_FRAC or gain is None:
        return None
    code = _code(evidence.run.models)
    return Finding(
        ledger_parts=("compute",),
        claim=f"{percent(share)} {step_or_recording(evidence)} goes to dropout, which draws its random numbers slowly "
        "on a CPU.",
        evidence=(f"{step_spends(evidence, cost_ns)} in {count(cost.count, 'call')} of dropout.", _times_text(times)),
        numbers=known_numbers(share_frac=share, cost_ns=cost_ns, calls=cost.count),
        fix=code,
        advice=sentences(_DISTRIBUTION, _PICKLED) if code else f"Replace nn.Dropout by another mask. {_DISTRIBUTION}",
        gain=gain,
        confidence=LIKELY,
        spans=cost.spans,
    )


def _saved_frac(times: DropoutTimes) -> float:
    return 1 - (times.uniform_ns or 0) / (times.bernoulli_ns or 1)


def _times_text(times: DropoutTimes) -> str:
    return (
        f"After the recorded code, {count(times.calls, 'call')} of nn.Dropout ran alone, forward and backward, on this "
        f"machine: {duration(times.bernoulli_ns or 0)} as PyTorch computes them, {duration(times.uniform_ns or 0)} if "
        "uniform random numbers are compared with the rate."
    )


def _code(models: tuple[Model, ...]) -> str:
    """Return code that changes the class of the dropout modules; none unless one variable holds the only model."""
    if len(models) != 1 or models[0].compiled or not models[0].name or not is_variable(models[0].name):
        return ""
    return mask_dropout_code(models[0].name)


def mask_dropout_code(model: str) -> str:
    """Return code that makes the dropout of this model compare uniform random numbers with the rate.

    Modules keep their settings, and the model its parameters and their names.
    """
    return (
        "import torch\n\n"
        "class MaskDropout(torch.nn.Dropout):\n"
        "    def forward(self, input):\n"
        "        if not self.training or self.inplace or not 0 < self.p < 1:\n"
        "            return super().forward(input)\n"
        "        mask = torch.rand_like(input, dtype=torch.float32).ge_(self.p).mul_(1 / (1 - self.p))\n"
        "        return input * mask.to(input.dtype)\n\n"
        f"for module in {model}.modules():\n"
        "    if type(module) is torch.nn.Dropout:\n"
        "        module.__class__ = MaskDropout"
    )
