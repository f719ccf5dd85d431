"""Rules about precision: matrix products in float32 on a GPU whose tensor cores stand idle."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.interior import Interior, interior
from gpulab.analysis.kernels.table import is_matrix
from gpulab.analysis.kernels.tensor_cores import Cores, Maths, maths, tf32_setting
from gpulab.hardware.architectures import has_bfloat16
from gpulab.hardware.precision import Precision, precision_speedup
from gpulab.hardware.vendor import is_amd
from gpulab.intervals import Spans
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, Gain, Unjudged, figures
from gpulab.rules.engine.needs import Need
from gpulab.rules.engine.phrases import duration_in_step, of_each_step
from gpulab.rules.kernels.speedup import by_ratio, faster_work, largest_kernel, worth_having
from gpulab.wording import number, percent

PRECISION_WORTH_FRAC = 0.10  # less of a step than this is not worth a change of numerics
UNKNOWN_FRAC = 0.5  # with more matrix time than this in kernels whose names do not tell, nothing is said
WORTH_RATIO = 1.2  # a GPU whose TF32 or half is hardly faster than its float32 (GeForce's TF32) gains nothing
# What of a ratio of peaks comes out: from its 0.3rd power (layout, memory) to its 0.8th (large products).
# An A100's factor of 8 for TF32 gave 2.6x on ResNet-50 and 6x on BERT, by NVIDIA's published examples.
WORST_POWER, BEST_POWER = 0.3, 0.8

NVIDIA = Need(
    lambda evidence: not any(is_amd(gpu.name) for gpu in evidence.run.machine.gpus),
    "the names of AMD's matrix kernels do not tell how they compute",
    "ask rocprof for the use of the matrix cores",
)


@dataclass(frozen=True, eq=False)
class Arithmetic:
    """How the matrix kernels of a run compute."""

    kernels: Interior
    plain: Mask  # float32 on the ordinary units
    tf32: Mask
    half: Mask
    matrix: Mask

    def cost_ns(self, mask: Mask) -> int:
        """What these cost a typical step."""
        return self.kernels.cost_ns(mask)

    @property
    def unknown_frac(self) -> float:
        """Share of matrix kernel time whose arithmetic the names do not tell."""
        time = self.kernels["dur_ns"]
        told = self.plain | self.tf32 | self.half
        return float(time[self.matrix & ~told].sum() / max(1, time[self.matrix].sum()))


def arithmetic(evidence: Evidence) -> Arithmetic | None:
    """How the matrix kernels compute; None where there are none, or the GPU is not one of NVIDIA's."""
    kernels = evidence.once(interior)
    if kernels is None or kernels.gpu is None or is_amd(kernels.gpu.name):
        return None
    codes = kernels.answers(lambda name: _code(maths(name)) if is_matrix(name) else None)
    matrix = codes >= 0
    if not matrix.any():
        return None
    plain = codes == _code(Maths(Cores.PLAIN, Precision.FLOAT32))
    tf32 = codes == _code(Maths(Cores.TENSOR, Precision.TF32))
    half = matrix & (codes % 8 == Precision.HALF)
    return Arithmetic(kernels, plain, tf32, half, matrix)


def _code(found: Maths) -> int:
    return int(found.cores) * 8 + int(found.precision)


def no_mixed_precision(evidence: Evidence) -> Finding | Unjudged | None:
    """Matrix products are computed in float32 although the GPU computes half precision many times as fast.

    Proof: the names of the matrix kernels (sgemm, scudnn, ffma, simt: float32 on the ordinary units; tf32: float32
    on tensor cores) and no half-precision ones beside them. Confused with: autocast that is on (its kernels bear
    half-precision names); kernels of unknown names (then nothing is said); GPUs of other makers, whose names follow
    other rules; a GPU that waits for its host, which faster kernels do not help. What to do: autocast around the
    forward pass, with a gradient scaler where float16 is used.
    """
    found = arithmetic(evidence)
    if found is None:
        return None
    single = found.plain | found.tf32
    cost_ns = found.cost_ns(single)
    share = evidence.step_share(cost_ns)
    if share < PRECISION_WORTH_FRAC:
        return _untold(evidence, found)
    bulk = Precision.TF32 if found.cost_ns(found.tf32) > cost_ns / 2 else Precision.FLOAT32
    ratio = precision_speedup(found.kernels.gpu, Precision.HALF, bulk)
    if ratio is None or ratio < WORTH_RATIO:
        return None
    rewrites = f"amp={_half(found.kernels)}"
    gain = _faster(evidence, cost_ns, ratio, "half precision", found.kernels.spans(single), rewrites)
    if gain is None:
        return None
    half_ns = found.cost_ns(found.half)
    kind = "TF32" if bulk is Precision.TF32 else "float32"
    return Finding(
        parts=("matmul",),
        claim=f"{percent(share)} {of_each_step(evidence)} goes to matrix products in {kind}; "
        f"this GPU computes them in half precision (16 bits) up to {number(ratio, 2)} times as fast.",
        evidence=(
            f"{duration_in_step(evidence, cost_ns)} in {kind} matrix kernels; the largest is "
            f"{largest_kernel(found.kernels, single)}.",
            f"{duration_in_step(evidence, half_ns)} is in half precision already: autocast does not cover the rest."
            if half_ns
            else "No kernel of half precision ran: autocast is off.",
        ),
        numbers=figures(share_frac=share, cost_ns=cost_ns, half_ns=half_ns, peak_ratio=ratio),
        fix=_autocast(evidence, found.kernels),
        advice="Watch the loss over the first few hundred steps: what needs float32 stays in it under autocast.",
        gain=gain,
        rewrites=evidence.typed(rewrites),
        confidence=CERTAIN,
        shown_by=found.kernels.spans(single),
    )


def _faster(evidence: Evidence, cost_ns: int, ratio: float, to: str, spans: Spans, rewrites: str) -> Gain | None:
    worst, best = ratio**WORST_POWER, ratio**BEST_POWER
    basis = f"the float32 products made {number(worst, 2)} to {number(best, 2)} times as fast"
    gain = faster_work(evidence, cost_ns, by_ratio(worst, best, ratio), basis, f"even {to} at its peak", spans=spans)
    return worth_having(evidence.predicted(rewrites, gain)) if gain is not None else None


def _untold(evidence: Evidence, found: Arithmetic) -> Unjudged | None:
    """Much matrix time in kernels of unknown names is a reason to say nothing, and to say so."""
    cost_ns = found.cost_ns(found.matrix)
    share = evidence.step_share(cost_ns)
    if found.unknown_frac <= UNKNOWN_FRAC or share < PRECISION_WORTH_FRAC:
        return None
    return Unjudged(
        why=f"the names of {percent(found.unknown_frac)} of the matrix kernels (by time) do not tell their precision",
        fix="look at the dtype of the model's parameters, and whether torch.is_autocast_enabled() in its forward",
    )


def no_tf32(evidence: Evidence) -> Finding | None:
    """Matrix products run in float32 on the ordinary units although this GPU has TF32 tensor cores.

    Proof: kernels named sgemm, ffma or simt on a GPU of compute capability 8.0 and more, and PyTorch's setting where
    it was recorded ("highest" keeps TF32 off). Confused with: `no_mixed_precision`, which asks for half precision and
    changes more; code that needs all of float32. What to do: one line, which lets the tensor cores round the factors
    to 10 bits and still adds up in float32.
    """
    found = arithmetic(evidence)
    if found is None:
        return None
    ratio = precision_speedup(found.kernels.gpu, Precision.TF32, Precision.FLOAT32)
    cost_ns = found.cost_ns(found.plain)
    share = evidence.step_share(cost_ns)
    if ratio is None or ratio < WORTH_RATIO or share < PRECISION_WORTH_FRAC:
        return None
    setting = tf32_setting(evidence.run)
    if setting == "on":
        return None  # then these products keep off the tensor cores for a reason of their own
    gain = _faster(evidence, cost_ns, ratio, "TF32", found.kernels.spans(found.plain), "tf32")
    if gain is None:
        return None
    half = precision_speedup(found.kernels.gpu, Precision.HALF, Precision.FLOAT32)
    return Finding(
        parts=("matmul",),
        claim=f"{percent(share)} {of_each_step(evidence)} goes to float32 matrix products that do not use the "
        f"GPU's tensor cores; in TF32 they would, up to {number(ratio, 2)} times as fast.",
        evidence=(
            f"{duration_in_step(evidence, cost_ns)} in such kernels; the largest is "
            f"{largest_kernel(found.kernels, found.plain)}.",
            *(("PyTorch's setting for float32 products, as recorded, keeps TF32 off.",) if setting == "off" else ()),
        ),
        numbers=figures(share_frac=share, cost_ns=cost_ns, peak_ratio=ratio),
        fix='import torch\n\ntorch.set_float32_matmul_precision("high")  # once, before training',
        advice="Sums stay in float32; only the factors are rounded, to 10 bits of mantissa."
        + (f" bfloat16 autocast goes further: up to {number(half, 2)} times." if half else ""),
        gain=gain,
        rewrites=evidence.typed("tf32"),
        confidence=CERTAIN if setting == "off" else LIKELY,
        why_confidence="the kernels' names tell; PyTorch's setting was not recorded" if setting is None else "",
        shown_by=found.kernels.spans(found.plain),
    )


def _half(kernels: Interior) -> str:
    """What this GPU's tensor cores take, as `amp` is told it."""
    return "bf16" if has_bfloat16(kernels.gpu) else "fp16"


def _autocast(evidence: Evidence, kernels: Interior) -> str:
    return autocast(evidence, bfloat16=has_bfloat16(kernels.gpu))


def autocast(evidence: Evidence, *, bfloat16: bool) -> str:
    """bfloat16 where the GPU has it; before compute capability 8.0 float16, which needs a gradient scaler."""
    model, optimizer = evidence.names.model, evidence.names.optimizer
    dtype = "bfloat16" if bfloat16 else "float16"
    fix = f'import torch\n\n{model}.forward = torch.autocast("cuda", dtype=torch.{dtype})({model}.forward)'
    if bfloat16 or not evidence.trains:
        return fix
    return (
        f'{fix}\nscaler = torch.amp.GradScaler("cuda")  # keeps small gradients above float16\'s least\n\n\n'
        "def learn(loss):  # in place of loss.backward() and optimizer.step()\n"
        "    scaler.scale(loss).backward()\n"
        f"    scaler.step({optimizer})\n"
        "    scaler.update()"
    )
