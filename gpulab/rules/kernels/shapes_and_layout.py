"""Rules about sizes and layouts: dimensions that tensor cores cannot read well, and images turned around in passing."""

from __future__ import annotations

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.families import is_layout
from gpulab.analysis.kernels.interior import Interior, short
from gpulab.analysis.kernels.roofline import Work, sized
from gpulab.analysis.kernels.table import is_matrix
from gpulab.analysis.kernels.tensor_cores import Cores, alignment, maths
from gpulab.hardware.architectures import parse_capability
from gpulab.hardware.precision import Precision
from gpulab.hardware.vendor import is_amd, is_amd_instinct
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, figures
from gpulab.rules.engine.phrases import duration_in_step, of_each_step
from gpulab.rules.kernels.speedup import by_ratio, faster_work, kernel_group, worth_having
from gpulab.wording import count, number, percent

MISALIGNED_WORTH_FRAC = 0.05  # padding a dimension is easy where it is the model's own
# Tensor cores want 16 bytes at once: 8 halves, 4 TF32 numbers. Half of that still works well.
POOR_ALIGNMENT = {Precision.HALF: 2, Precision.TF32: 1}
WANTED_MULTIPLE = {Precision.HALF: 8, Precision.TF32: 4}
# An aligned kernel against one that reads elements singly: 1.3 to 4 times as fast, by PyTorch's own table of such
# sizes (its profiler's pattern matcher) and NVIDIA's guide to matrix sizes; 8 would be all of the wider reads.
MISALIGNED_RATIOS = (1.3, 4.0, 8.0)

LAYOUT_WORTH_FRAC = 0.03  # the fix is one line
CHANNELS_LAST_CAPABILITY = 7  # tensor cores want channels last; before them it may be slower


def misaligned_shapes(evidence: Evidence) -> Finding | None:
    """Matrix dimensions that are no multiple of 8 make tensor cores read their numbers one by one.

    Proof: the names of the kernels end in `_align1` or `_align2`: so many elements are read at once, where 8 of half
    precision (4 of TF32) are possible. The sizes of the operators, where recorded, tell which dimension. Confused
    with: libraries that pad such sizes themselves (their kernels bear no such name). What to do: pad the dimension:
    a vocabulary, a class count, a sequence length.
    """
    group = kernel_group(evidence, _reads_singly, MISALIGNED_WORTH_FRAC)
    if group is None or (group.kernels.gpu is not None and is_amd(group.kernels.gpu.name)):
        return None
    kernels, poor, cost_ns, share, largest = group
    worst, best, utmost = MISALIGNED_RATIOS
    basis = f"these products made {number(worst, 2)} to {number(best, 2)} times as fast"
    means = f"even {number(utmost, 2)} times as fast products"
    gain = faster_work(evidence, cost_ns, by_ratio(*MISALIGNED_RATIOS), basis, means, spans=kernels.spans(poor))
    if gain is None:
        return None
    odd = _odd(evidence, poor)
    multiple = WANTED_MULTIPLE.get(maths(largest).precision, 8)
    return Finding(
        parts=("matmul",),
        claim=f"{percent(share)} {of_each_step(evidence)} goes to matrix products with a dimension that is no multiple "
        f"of {multiple}" + (f" ({odd[1]})" if odd else "") + ": tensor cores must read them piece by piece.",
        evidence=(
            f"{duration_in_step(evidence, cost_ns)} in kernels that read 1 or 2 elements at once; the largest is "
            f"{short(largest)}.",
            *((f"{odd[0].op} multiplies {_sizes(odd[0])}.",) if odd else ()),
        ),
        numbers=figures(share_frac=share, cost_ns=cost_ns, odd_size=odd[1] if odd else None),
        fix=_padding(multiple),
        advice=f"Sizes of the model (vocabulary, classes, width): round them up to a multiple of {multiple} where they "
        "are set. Sequences: pad to such a length and mask, or keep the one extra token out of the large product.",
        gain=gain,
        confidence=CERTAIN,
        shown_by=kernels.spans(poor),
    )


def _reads_singly(name: str) -> bool:
    if not is_matrix(name):
        return False
    reads, found = alignment(name), maths(name)
    return reads is not None and found.cores is Cores.TENSOR and reads <= POOR_ALIGNMENT.get(found.precision, 0)


def _odd(evidence: Evidence, poor: Mask) -> tuple[Work, int] | None:
    """The product behind these kernels that takes most time, and its dimension that is no multiple; None: not told."""
    for work in evidence.once(sized):
        matrix = work.product
        if matrix is None or not poor[work.kernels].any():
            continue
        multiple = WANTED_MULTIPLE.get(work.precision, 8)
        odd = [size for size in (matrix.rows, matrix.inner, matrix.columns) if size % multiple and size > 1]
        if odd:
            return work, max(odd)
    return None


def _sizes(work: Work) -> str:
    matrix = work.product
    assert matrix is not None, "only products have an odd size"
    times = f"{matrix.times} times " if matrix.times > 1 else ""
    return f"{times}{matrix.rows} x {matrix.inner} by {matrix.inner} x {matrix.columns}"


def _padding(multiple: int) -> str:
    return (
        "import torch.nn.functional as F\n\n\n"
        f"def rounded_up(size):  # for sizes of the model: nn.Linear(width, rounded_up(classes))\n"
        f"    return (size + {multiple - 1}) // {multiple} * {multiple}\n\n\n"
        "def padded(x):  # for sizes of the data: zeros at the end of the last dimension\n"
        f"    return F.pad(x, (0, -x.size(-1) % {multiple}))"
    )


def layout_conversions(evidence: Evidence) -> Finding | None:
    """Convolutions turn every batch of images around, because tensor cores want the channels last.

    Proof: kernels nchwToNhwc and nhwcToNchw (batched_transpose on AMD) inside convolutions. Confused with: a layout
    change that the program itself asks for, once. What to do: keep model and images in channels_last from the start.
    On GPUs without tensor cores, and in float32 there, it may be slower: compare.
    """
    group = kernel_group(evidence, is_layout, LAYOUT_WORTH_FRAC)
    if group is None:
        return None
    kernels, turning, cost_ns, share, largest = group
    # What is left of them: the batch itself, once; at the most nothing.
    basis = "the conversions, lessened by 40 to 100 %"
    spans = kernels.spans(turning)
    gain = faster_work(evidence, cost_ns, (0.6, 0.0, 0.0), basis, "even no conversions", spans=spans)
    gain = worth_having(evidence.predicted("channels_last", gain)) if gain is not None else None
    if gain is None:
        return None
    amd = kernels.gpu is not None and is_amd(kernels.gpu.name)
    if amd and kernels.gpu and not is_amd_instinct(kernels.gpu.name):
        return None  # MIOpen is slower with the channels last on AMD's gaming cards
    many = round(kernels.per_step(turning))
    return Finding(
        parts=("kernels",),
        claim=f"{percent(share)} {of_each_step(evidence)} goes to turning images around inside convolutions: "
        "the GPU wants the channels last.",
        evidence=(
            f"{duration_in_step(evidence, cost_ns)} in {count(many, 'layout conversion')} a step; the largest is "
            f"{short(largest)}.",
        ),
        numbers=figures(share_frac=share, cost_ns=cost_ns, per_step=many),
        fix=_channels_last(evidence, amd),
        advice="Convert the batch too, where it is made or copied: images.to(memory_format=torch.channels_last).",
        gain=gain,
        rewrites=evidence.typed("channels_last"),
        confidence=LIKELY if amd or _old(kernels) else CERTAIN,
        shown_by=kernels.spans(turning),
        caveats=("On this GPU float32 convolutions may be slower with channels last: compare.",)
        if _old(kernels)
        else (),
    )


def _old(kernels: Interior) -> bool:
    capability = parse_capability(kernels.gpu.compute_capability) if kernels.gpu else None
    return capability is not None and capability[0] <= CHANNELS_LAST_CAPABILITY


def _channels_last(evidence: Evidence, amd: bool) -> str:
    asked = (
        'import os\n\nos.environ["PYTORCH_MIOPEN_SUGGEST_NHWC"] = "1"  # before the first convolution\n' if amd else ""
    )
    return (
        f"{asked}import torch\n\n{evidence.names.model} = {evidence.names.model}.to(memory_format=torch.channels_last)"
    )
