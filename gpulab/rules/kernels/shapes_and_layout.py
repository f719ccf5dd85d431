"""Rules about shapes and layouts: dimensions that tensor cores handle badly, and NCHW/NHWC conversions."""

from __future__ import annotations

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.families import is_layout_conversion
from gpulab.analysis.kernels.interior_kernels import InteriorKernels, short_kernel_name
from gpulab.analysis.kernels.kernel_table import is_matrix
from gpulab.analysis.kernels.roofline import OperatorWork, operator_work_of_run
from gpulab.analysis.kernels.tensor_cores import Cores, alignment, kernel_arithmetic
from gpulab.hardware.architectures import parse_capability
from gpulab.hardware.precision import Precision
from gpulab.hardware.vendor import is_amd, is_amd_instinct
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, known_numbers
from gpulab.rules.engine.phrases import step_or_recording, step_spends
from gpulab.rules.kernels.speedup import faster_kernels_gain, kernel_group, remaining_fracs
from gpulab.wording import count, number, percent

_MIN_MISALIGNED_FRAC = 0.05  # of a step; padding a dimension of the model is easy
# Elements per read. Tensor cores read 16 bytes at once: 8 half-precision or 4 TF32 numbers; half of that is still fast.
_POOR_ALIGNMENT = {Precision.HALF: 2, Precision.TF32: 1}
_REQUIRED_MULTIPLE = {Precision.HALF: 8, Precision.TF32: 4}
# Speed of an aligned kernel relative to one that reads single elements: 1.3 to 4, from the table in the pattern matcher
# of PyTorch's profiler and NVIDIA's guide to matrix sizes; 8 is the full width of the reads.
_ALIGNMENT_RATIOS = (1.3, 4.0, 8.0)

_MIN_LAYOUT_FRAC = 0.03  # the fix is one line
_CHANNELS_LAST_CAPABILITY = 7  # GPUs up to this one may be slower with channels last in float32


def misaligned_shapes(evidence: Evidence) -> Finding | None:
    """Matrix dimensions that are not a multiple of 8 make tensor cores read single elements.

    Proof: the kernel names end in `_align1` or `_align2`, the number of elements per read, where 8 in half precision (4
    in TF32) are possible. The sizes of the operators, if recorded, show which dimension it is.

    Confused with: libraries that pad such sizes internally, whose kernels have no such names.

    What to do: pad the dimension: a vocabulary, a class count, a sequence length.
    """
    group = kernel_group(evidence, _is_misaligned, _MIN_MISALIGNED_FRAC)
    if group is None or (group.kernels.gpu is not None and is_amd(group.kernels.gpu.name)):
        return None
    kernels, is_misaligned, cost_ns, share, largest = group
    worst, best, bound = _ALIGNMENT_RATIOS
    basis = f"matrix products that run {number(worst, 2)} to {number(best, 2)} times as fast"
    floor_means = f"these products {number(bound, 2)} times as fast"
    gain = faster_kernels_gain(
        evidence, cost_ns, remaining_fracs(*_ALIGNMENT_RATIOS), basis, floor_means, spans=kernels.spans(is_misaligned)
    )
    if gain is None:
        return None
    odd_dimension = _odd_dimension(evidence, is_misaligned)
    multiple = _REQUIRED_MULTIPLE.get(kernel_arithmetic(largest).precision, 8)
    return Finding(
        ledger_parts=("matmul",),
        claim=f"{percent(share)} {step_or_recording(evidence)} goes to matrix products with a dimension that is not a "
        f"multiple of {multiple}"
        + (f" ({odd_dimension[1]})" if odd_dimension else "")
        + ": tensor cores read single elements.",
        evidence=(
            f"{step_spends(evidence, evidence.unprofiled_ns(cost_ns))} "
            "in kernels that read 1 or 2 elements at a time; the largest is "
            f"{short_kernel_name(largest)}.",
            *((f"{odd_dimension[0].op} multiplies {_product_sizes(odd_dimension[0])}.",) if odd_dimension else ()),
        ),
        numbers=known_numbers(share_frac=share, cost_ns=cost_ns, odd_size=odd_dimension[1] if odd_dimension else None),
        fix=_padding_code(multiple),
        advice=f"Round sizes of the model (vocabulary, classes, width) up to a multiple of {multiple} where they are "
        "defined. Pad sequences to such a length and mask the padding.",
        gain=gain,
        confidence=CERTAIN,
        spans=kernels.spans(is_misaligned),
    )


def _is_misaligned(name: str) -> bool:
    if not is_matrix(name):
        return False
    reads, arithmetic = alignment(name), kernel_arithmetic(name)
    return (
        reads is not None and arithmetic.cores is Cores.TENSOR and reads <= _POOR_ALIGNMENT.get(arithmetic.precision, 0)
    )


def _odd_dimension(evidence: Evidence, is_misaligned: Mask) -> tuple[OperatorWork, int] | None:
    """Return the longest product in these kernels with a misaligned dimension, and that dimension."""
    for work in evidence.cached(operator_work_of_run):
        matrix = work.product
        if matrix is None or not is_misaligned[work.kernels].any():
            continue
        multiple = _REQUIRED_MULTIPLE.get(work.precision, 8)
        sizes = [size for size in (matrix.rows, matrix.inner, matrix.columns) if size % multiple and size > 1]
        if sizes:
            return work, max(sizes)
    return None


def _product_sizes(work: OperatorWork) -> str:
    matrix = work.product
    assert matrix is not None, "only matrix products have a misaligned size"
    times = f"{matrix.times} times " if matrix.times > 1 else ""
    return f"{times}{matrix.rows} x {matrix.inner} by {matrix.inner} x {matrix.columns}"


def _padding_code(multiple: int) -> str:
    return (
        "import torch.nn.functional as F\n\n\n"
        f"def round_up(size):  # for sizes of the model: nn.Linear(width, round_up(classes))\n"
        f"    return (size + {multiple - 1}) // {multiple} * {multiple}\n\n\n"
        "def pad(x):  # for sizes of the data: zeros at the end of the last dimension\n"
        f"    return F.pad(x, (0, -x.size(-1) % {multiple}))"
    )


def layout_conversions(evidence: Evidence) -> Finding | None:
    """Activations are converted between NCHW and NHWC around convolutions: tensor cores use channels last (NHWC).

    Proof: the kernels nchwToNhwc and nhwcToNchw (batched_transpose on AMD) inside convolutions.

    Confused with: a layout change that the program requests itself, once.

    What to do: keep the model and the images in channels_last from the start. On GPUs without tensor cores, and in
    float32 on those, channels last may be slower: compare.
    """
    group = kernel_group(evidence, is_layout_conversion, _MIN_LAYOUT_FRAC)
    if group is None:
        return None
    kernels, is_conversion, cost_ns, share, largest = group
    # At worst the conversion of the batch itself remains; at best nothing.
    basis = "removing 40 to 100 % of the conversions"
    spans = kernels.spans(is_conversion)
    gain = faster_kernels_gain(
        evidence, cost_ns, (0.6, 0.0, 0.0), basis, "no conversions", spans=spans, rewrites="channels_last"
    )
    if gain is None:
        return None
    amd = kernels.gpu is not None and is_amd(kernels.gpu.name)
    if amd and kernels.gpu and not is_amd_instinct(kernels.gpu.name):
        return None  # MIOpen is slower with channels last on AMD's consumer GPUs
    conversions = round(kernels.per_step(is_conversion))
    return Finding(
        ledger_parts=("kernels",),
        claim=f"{percent(share)} {step_or_recording(evidence)} goes to NCHW/NHWC conversions around convolutions: the "
        "GPU computes convolutions in NHWC (channels last).",
        evidence=(
            f"{step_spends(evidence, evidence.unprofiled_ns(cost_ns))} in {count(conversions, 'layout conversion')}; "
            f"the largest is {short_kernel_name(largest)}.",
        ),
        numbers=known_numbers(share_frac=share, cost_ns=cost_ns, per_step=conversions),
        fix=_channels_last_code(evidence, amd),
        advice="Also convert the batch where it is created or copied: images.to(memory_format=torch.channels_last).",
        gain=gain,
        rewrites=evidence.applicable_rewrites("channels_last"),
        confidence=LIKELY if amd or _is_old(kernels) else CERTAIN,
        spans=kernels.spans(is_conversion),
        caveats=("On this GPU, float32 convolutions may be slower with channels last: compare.",)
        if _is_old(kernels)
        else (),
    )


def _is_old(kernels: InteriorKernels) -> bool:
    capability = parse_capability(kernels.gpu.compute_capability) if kernels.gpu else None
    return capability is not None and capability[0] <= _CHANNELS_LAST_CAPABILITY


def _channels_last_code(evidence: Evidence, amd: bool) -> str:
    setting = (
        'import os\n\nos.environ["PYTORCH_MIOPEN_SUGGEST_NHWC"] = "1"  # before the first convolution\n' if amd else ""
    )
    model = evidence.names.model
    return f"{setting}import torch\n\n{model} = {model}.to(memory_format=torch.channels_last)"
