"""Rules about precision: float32 matrix products on a GPU with idle tensor cores."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.interior_kernels import InteriorKernels, interior_kernels
from gpulab.analysis.kernels.kernel_table import is_matrix
from gpulab.analysis.kernels.tensor_cores import Cores, KernelArithmetic, kernel_arithmetic, tf32_setting
from gpulab.hardware.architectures import has_bfloat16
from gpulab.hardware.precision import Precision, precision_speedup
from gpulab.hardware.vendor import is_amd
from gpulab.intervals import Spans
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, Gain, Unjudged, known_numbers
from gpulab.rules.engine.needs import Need
from gpulab.rules.engine.phrases import step_or_recording, step_spends
from gpulab.rules.kernels.speedup import faster_kernels_gain, largest_kernel, remaining_fracs
from gpulab.wording import duration, number, percent

_MIN_PRECISION_FRAC = 0.10  # of a step; less is not worth a change of numerics
_MAX_UNKNOWN_FRAC = 0.5  # with more matrix time in kernels of unknown precision, the rule does not judge
MIN_SPEEDUP_RATIO = (
    1.2  # a GPU whose TF32 or half precision is hardly faster than float32 (TF32 on GeForce) gains nothing
)
# The realised speed-up is the ratio of peaks to the power of 0.3 (limited by layout, memory) to 0.8 (large products).
# An A100's factor of 8 for TF32 gave 2.6x on ResNet-50 and 6x on BERT, by NVIDIA's published examples.
WORST_POWER, BEST_POWER = 0.3, 0.8

NVIDIA = Need(
    "a GPU that is not from AMD",
    lambda evidence: not any(is_amd(gpu.name) for gpu in evidence.run.machine.gpus),
    "the names of AMD's matrix kernels do not show their precision",
    "measure the use of the matrix cores with rocprof",
)


@dataclass(frozen=True, eq=False)
class MatrixArithmetic:
    """The precision of the matrix kernels of a run."""

    kernels: InteriorKernels
    float32: Mask  # float32 without tensor cores
    tf32: Mask
    half: Mask
    matrix: Mask

    def cost_ns(self, mask: Mask) -> int:
        """Return the time of these kernels in a typical step."""
        return self.kernels.cost_ns(mask)

    @property
    def unknown_frac(self) -> float:
        """Share of the matrix kernels' time whose precision the names do not show."""
        time = self.kernels["dur_ns"]
        is_known = self.float32 | self.tf32 | self.half
        return float(time[self.matrix & ~is_known].sum() / max(1, time[self.matrix].sum()))


def matrix_arithmetic(evidence: Evidence) -> MatrixArithmetic | None:
    """Return the precision of the matrix kernels; None if there are none or the GPU is not from NVIDIA."""
    kernels = evidence.cached(interior_kernels)
    if kernels is None or kernels.gpu is None or is_amd(kernels.gpu.name):
        return None
    codes = kernels.map_names(lambda name: _precision_code(kernel_arithmetic(name)) if is_matrix(name) else None)
    matrix = codes >= 0
    if not matrix.any():
        return None
    float32 = codes == _precision_code(KernelArithmetic(Cores.CUDA, Precision.FLOAT32))
    tf32 = codes == _precision_code(KernelArithmetic(Cores.TENSOR, Precision.TF32))
    half = matrix & (codes % 8 == Precision.HALF)
    return MatrixArithmetic(kernels, float32, tf32, half, matrix)


def _precision_code(precision_of_kernel: KernelArithmetic) -> int:
    return int(precision_of_kernel.cores) * 8 + int(precision_of_kernel.precision)


def no_mixed_precision(evidence: Evidence) -> Finding | Unjudged | None:
    """Matrix products run in float32 although the GPU is several times as fast in half precision.

    Proof: the names of the matrix kernels (sgemm, scudnn, ffma, simt: float32 without tensor cores; tf32: float32 on
    tensor cores), and no half-precision kernels.

    Confused with: autocast that is already on (its kernels have half-precision names); kernels with unknown names,
    which are not judged; GPUs of other vendors, whose names follow other rules; a GPU that waits for the host, which
    faster kernels do not help.

    What to do: use autocast around the forward pass, with a gradient scaler for float16.
    """
    products = matrix_arithmetic(evidence)
    if products is None:
        return None
    is_float32 = products.float32 | products.tf32
    cost_ns = products.cost_ns(is_float32)
    share = evidence.step_share(cost_ns)
    if share < _MIN_PRECISION_FRAC:
        return _unjudged_precision(evidence, products)
    main_precision = Precision.TF32 if products.cost_ns(products.tf32) > cost_ns / 2 else Precision.FLOAT32
    ratio = precision_speedup(products.kernels.gpu, Precision.HALF, main_precision)
    if ratio is None or ratio < MIN_SPEEDUP_RATIO:
        return None
    rewrites = f"amp={_half_type(products.kernels)}"
    gain = _precision_gain(evidence, cost_ns, ratio, "half precision", products.kernels.spans(is_float32), rewrites)
    if gain is None:
        return None
    half_ns = products.cost_ns(products.half)
    kind = "TF32" if main_precision is Precision.TF32 else "float32"
    return Finding(
        ledger_parts=("matmul",),
        claim=f"{percent(share)} {step_or_recording(evidence)} goes to {kind} matrix products; "
        f"half precision (16 bits) is up to {number(ratio, 2)} times as fast on this GPU.",
        evidence=(
            f"{step_spends(evidence, evidence.unprofiled_ns(cost_ns))} in {kind} matrix kernels; the largest is "
            f"{largest_kernel(products.kernels, is_float32)}.",
            f"Another {duration(half_ns)} is already in half precision: autocast does not cover the rest."
            if half_ns
            else "No half-precision kernel ran: autocast is off.",
        ),
        numbers=known_numbers(share_frac=share, cost_ns=cost_ns, half_ns=half_ns, peak_ratio=ratio),
        fix=_autocast_code(evidence, products.kernels),
        advice="Watch the loss over the first few hundred steps. Autocast keeps operators that need float32 in "
        "float32.",
        gain=gain,
        rewrites=evidence.applicable_rewrites(rewrites),
        confidence=CERTAIN,
        spans=products.kernels.spans(is_float32),
    )


def _precision_gain(
    evidence: Evidence, cost_ns: int, ratio: float, to: str, spans: Spans, rewrites: str
) -> Gain | None:
    worst, best = ratio**WORST_POWER, ratio**BEST_POWER
    basis = f"float32 products that run {number(worst, 2)} to {number(best, 2)} times as fast"
    return faster_kernels_gain(
        evidence,
        cost_ns,
        remaining_fracs(worst, best, ratio),
        basis,
        f"{to} at its peak",
        spans=spans,
        rewrites=rewrites,
    )


def _unjudged_precision(evidence: Evidence, products: MatrixArithmetic) -> Unjudged | None:
    """Return Unjudged if much of the matrix time is in kernels of unknown precision."""
    cost_ns = products.cost_ns(products.matrix)
    share = evidence.step_share(cost_ns)
    if products.unknown_frac <= _MAX_UNKNOWN_FRAC or share < _MIN_PRECISION_FRAC:
        return None
    return Unjudged(
        reason=f"{percent(products.unknown_frac)} of the matrix kernels (by time) have names that do not show their "
        "precision",
        fix="check the dtype of the model's parameters and torch.is_autocast_enabled() inside its forward()",
    )


def no_tf32(evidence: Evidence) -> Finding | None:
    """Float32 matrix products run without tensor cores although this GPU supports TF32.

    Proof: kernels named sgemm, ffma or simt on a GPU of compute capability 8.0 or higher, and PyTorch's setting if it
    was recorded ("highest" keeps TF32 off).

    Confused with: `no_mixed_precision`, which proposes half precision, a larger change; code that needs full float32.

    What to do: set one option. Tensor cores then round the factors to 10 bits of mantissa and accumulate in float32.
    """
    products = matrix_arithmetic(evidence)
    if products is None:
        return None
    ratio = precision_speedup(products.kernels.gpu, Precision.TF32, Precision.FLOAT32)
    cost_ns = products.cost_ns(products.float32)
    share = evidence.step_share(cost_ns)
    if ratio is None or ratio < MIN_SPEEDUP_RATIO or share < _MIN_PRECISION_FRAC:
        return None
    setting = tf32_setting(evidence.run)
    if setting == "on":
        return None  # then these products avoid tensor cores for another reason
    gain = _precision_gain(evidence, cost_ns, ratio, "TF32", products.kernels.spans(products.float32), "tf32")
    if gain is None:
        return None
    half = precision_speedup(products.kernels.gpu, Precision.HALF, Precision.FLOAT32)
    return Finding(
        ledger_parts=("matmul",),
        claim=f"{percent(share)} {step_or_recording(evidence)} goes to float32 matrix products without tensor cores; "
        f"TF32 is up to {number(ratio, 2)} times as fast.",
        evidence=(
            f"{step_spends(evidence, evidence.unprofiled_ns(cost_ns))} in such kernels; the largest is "
            f"{largest_kernel(products.kernels, products.float32)}.",
            *(("PyTorch's recorded setting for float32 matrix products disables TF32.",) if setting == "off" else ()),
        ),
        numbers=known_numbers(share_frac=share, cost_ns=cost_ns, peak_ratio=ratio),
        fix='import torch\n\ntorch.set_float32_matmul_precision("high")  # once, before training',
        advice="Accumulation stays in float32; only the inputs are rounded, to a 10-bit mantissa."
        + (f" bfloat16 autocast is up to {number(half, 2)} times as fast as float32." if half else ""),
        gain=gain,
        rewrites=evidence.applicable_rewrites("tf32"),
        confidence=CERTAIN if setting == "off" else LIKELY,
        confidence_reason="judged by kernel names, as PyTorch's setting was not recorded" if setting is None else "",
        spans=products.kernels.spans(products.float32),
    )


def _half_type(kernels: InteriorKernels) -> str:
    """Return the half-precision type of this GPU's tensor cores, as the what-if `amp` takes it."""
    return "bf16" if has_bfloat16(kernels.gpu) else "fp16"


def _autocast_code(evidence: Evidence, kernels: InteriorKernels) -> str:
    return autocast_code(evidence, bfloat16=has_bfloat16(kernels.gpu))


def autocast_code(evidence: Evidence, *, bfloat16: bool) -> str:
    """Return autocast code: bfloat16 if the GPU supports it, else float16 with a gradient scaler.

    "" if a model has no forward() that it could wrap.
    """
    if any(each.has_forward is False for each in evidence.run.models):
        return ""
    model, optimizer = evidence.names.model, evidence.names.optimizer
    dtype = "bfloat16" if bfloat16 else "float16"
    fix = f'import torch\n\n{model}.forward = torch.autocast("cuda", dtype=torch.{dtype})({model}.forward)'
    if bfloat16 or not evidence.is_training:
        return fix
    return (
        f'{fix}\nscaler = torch.amp.GradScaler("cuda")  # keeps small gradients in the range of float16\n\n\n'
        "def backward_and_step(loss):  # instead of loss.backward() and optimizer.step()\n"
        "    scaler.scale(loss).backward()\n"
        f"    scaler.step({optimizer})\n"
        "    scaler.update()"
    )
