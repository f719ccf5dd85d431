"""Softmax, losses and normalisation: kernels that work row by row, or channel by channel."""

from __future__ import annotations

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.cost_model.elementwise import rows_of
from gpulab.virtual.cost_model.kernel import Kernel, OpClass
from gpulab.virtual.cost_model.op_classes import bare
from gpulab.virtual.cost_model.primitives import pass_ns
from gpulab.virtual.cost_model.rates import rates
from gpulab.virtual.cost_model.tensors import HALVES, c_type, elements, read, width, written
from gpulab.virtual.op_log.ops import Op, Tensor

WARP_ROW = 1024  # rows of up to so many elements are one warp's, and are read once
# Of the usual rate, where rows do not begin at 16 bytes: they are read several times, and short ones leave most of a
# block's threads idle. H100 trace: 3137 bfloat16 in each row. Long rows: a guess.
ODD_ROWS, ODD_LENGTH, ODD_LONG = 0.35, 3137, 0.70
HALF_NORM = 0.70  # of float32's rate: half the bytes, the same arithmetic; H100 trace, 0.39 of the peak
GRADIENT_NORM = 0.85  # of the forward's rate: layer normalisation's input gradient
GAMMA_BETA = 0.55  # of the memory's rate: sums over all rows, column by column; a guess
CHANNELS = 0.85  # of the memory's rate: batch normalisation, V100 traces 0.83 to 0.86
# How often batch normalisation reads and writes an image: mean and variance first, then the result.
TRAINING, INFERENCE, BACKWARD = 3.0, 2.0, 5.0
ROW_FIXED = 1.7  # of an elementwise kernel's fixed part: H100, 3.1 us of layer normalisation of 141 rows


def softmax_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Softmax, log_softmax and the losses on top of them."""
    if not op.inputs or not op.inputs[0].bytes:
        return ()
    if bare(op.name).startswith("nll_loss"):
        return _nll_loss(op, spec)
    backward = "backward" in op.name
    main = op.outputs[0] if op.outputs else op.inputs[0]
    rows, length = rows_of(main)
    share = rates(spec).softmax
    if length > WARP_ROW and length * width(main) % 16:
        share *= min(ODD_LONG, ODD_ROWS * max(1.0, length / ODD_LENGTH))
    log = "log" in op.name
    c = c_type(main.dtype)
    if length <= WARP_ROW:
        way, blocks = "backward" if backward else "forward", max(1, rows // 4)
        told = f"{max(1, (length - 1).bit_length())}, {'true' if log else 'false'}, false"
        name = f"void (anonymous namespace)::softmax_warp_{way}<{c}, {c}, float, {told}>"
    else:
        way, blocks = "Backward" if backward else "Forward", rows
        scope, kind = "at::native::(anonymous namespace)::", "LogSoftMax" if log else "SoftMax"
        told = f"{max(1, 16 // width(main))}, {c}, float, {c}"
        name = f"void {scope}cunn_SoftMax{way}<{told}, {scope}{kind}{way}Epilogue>"
    moved = float(read(op) + written(op))
    ns = pass_ns(moved, spec, share, rows=blocks, fixed=ROW_FIXED)
    return (Kernel(name, ns, blocks, 128 if length <= WARP_ROW else 1024, 40, 128, OpClass.SOFTMAX),)


def _nll_loss(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Reads one number of each row; backward fills the gradient with zeros first."""
    c = c_type(op.inputs[0].dtype)
    targets = max(1, elements(op.outputs[0]) if "backward" not in op.name and op.outputs else 1)
    moved = 32.0 * 8 * max(targets, rows_of(op.inputs[0])[0])  # a sector of memory for each row
    if "backward" not in op.name:
        name = f"void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<{c}, float, long>"
        # One block adds all rows up.
        return (Kernel(name, pass_ns(moved, spec, 0.5, fixed=1.8), 1, 32, 32, 0, OpClass.SOFTMAX),)
    name = f"void at::native::(anonymous namespace)::nll_loss_backward_reduce_cuda_kernel_2d<{c}, long>"
    gradient = op.outputs[0] if op.outputs else op.inputs[0]
    blocks = max(1, elements(gradient) // 512)
    fill = f"void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<{c}>, std::array<char*, 1ul> >"
    filled_ns = pass_ns(float(gradient.bytes), spec, rates(spec).stream)
    return (
        Kernel(fill, filled_ns, blocks, 128, 16, 0, OpClass.ELEMENTWISE),
        Kernel(name, pass_ns(moved, spec, 0.5, fixed=1.8), 1, 32, 32, 0, OpClass.SOFTMAX),
    )


def norm_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Layer, batch, group and RMS normalisation, forward and backward."""
    if not op.inputs or not op.inputs[0].bytes:
        return ()
    name, backward = bare(op.name), "backward" in op.name
    if "batch_norm" in name:
        return _batch_norm(op, spec, backward)
    if ("group_norm" in name or "instance_norm" in name) and len(op.inputs[0].sizes) > 1:
        return _group_norm(op, spec, backward)
    kind = "rms" if "rms" in name else "layer"
    return _layer_norm(op, spec, kind, backward)


def _layer_norm(op: Op, spec: GpuSpec, kind: str, backward: bool) -> tuple[Kernel, ...]:
    main = op.inputs[0]
    rows, length = rows_of(main)
    c, half = c_type(main.dtype), main.dtype in HALVES
    share = rates(spec).norm * (HALF_NORM if half else 1.0)
    scope = "void at::native::(anonymous namespace)::"
    flag = ", true" if kind == "rms" else ""
    if not backward:
        even = length % 4 == 0 and length <= 2**24
        name = f"{scope}vectorized_layer_norm_kernel<{c}, float{flag}>" if even else (
            f"{scope}RowwiseMomentsCUDAKernel<{c}, float{flag}>"
        )  # fmt: skip
        moved = float(main.bytes * 2)
        return (Kernel(name, pass_ns(moved, spec, share, rows=rows, fixed=ROW_FIXED), rows, 128, 34, 24, OpClass.NORM),)
    into = f"{scope}layer_norm_grad_input_kernel_vectorized<{c}, float{flag}>"
    moved = float(main.bytes * 3)
    ns = pass_ns(moved, spec, share * GRADIENT_NORM, rows=rows, fixed=ROW_FIXED)
    found = [Kernel(into, ns, rows, 128, 32, 16, OpClass.NORM)]
    if any(each.sizes == (length,) or elements(each) == length for each in op.outputs[1:]):
        sums = f"{scope}GammaBetaBackwardCUDAKernelTemplate<{c}, float, 32u, 1u, 32u, true, false{flag}>"
        blocks = max(1, length // 32)
        sums_ns = pass_ns(float(main.bytes * 2), spec, GAMMA_BETA, rows=max(blocks, rows // 256), fixed=ROW_FIXED)
        found.append(Kernel(sums, sums_ns, blocks, 512, 48, 4096, OpClass.NORM))
    return tuple(found)


def _batch_norm(op: Op, spec: GpuSpec, backward: bool) -> tuple[Kernel, ...]:
    """cuDNN's, which PyTorch uses for images on a GPU."""
    main = op.inputs[0]
    c = c_type(main.dtype)
    training = backward or _trains(op)
    passes = BACKWARD if backward else TRAINING if training else INFERENCE
    order = "NHWC" if main.channels_last else "NCHW"
    kind = "__half2" if main.dtype in HALVES else c
    if backward:
        name = f"void cudnn::bn_bw_1C11_kernel_new<{kind}, float, float2, 512, true, 1>"
        if main.channels_last:
            name = f"void cudnn::batchnorm_bwtr_nhwc_semiPersist<{kind}, float, float, 512, false>"
    elif training:
        name = f"void cudnn::bn_fw_tr_1C11_kernel_{order}<{kind}, float, int, 512, true, 1, true>"
    else:
        name = f"void cudnn::bn_fw_inf_1C11_kernel_{order}<{kind}, float, true, 1>"
    channels = main.sizes[1] if len(main.sizes) > 1 else 1
    blocks = max(1, channels) if not main.channels_last else max(1, elements(main) // 8192)
    moved = float(main.bytes) * passes
    share = min(CHANNELS, 0.95 * rates(spec).stream)
    return (
        Kernel(name, pass_ns(moved, spec, share, rows=blocks, fixed=ROW_FIXED), blocks, 512, 32, 400, OpClass.NORM),
    )


def _trains(op: Op) -> bool:
    """In inference no mean and variance come out to be saved."""
    return len(op.outputs) < 2 or any(elements(each) > 0 for each in op.outputs[1:3])


def _group_norm(op: Op, spec: GpuSpec, backward: bool) -> tuple[Kernel, ...]:
    main: Tensor = op.inputs[0]
    c, share = c_type(main.dtype), rates(spec).norm
    rows = max(1, main.sizes[0] * 32)
    scope = "void at::native::(anonymous namespace)::"
    moments = f"{scope}{'ComputeInternalGradientsCUDAKernel' if backward else 'RowwiseMomentsCUDAKernel'}<{c}>"
    moments += "/*group_norm*/"
    blocks = max(1, elements(main) // 512)
    result = f"void at::native::vectorized_elementwise_kernel<4, at::native::GroupNormKernelImplInternal<{c}>, 3ul>"
    many = 2.0 if backward else 1.0
    moments_ns = pass_ns(main.bytes * many, spec, share, rows=rows, fixed=ROW_FIXED)
    result_ns = pass_ns(main.bytes * (many + 1.0), spec, rates(spec).stream)
    return (
        Kernel(moments, moments_ns, rows, 512, 32, 16, OpClass.NORM),
        Kernel(result, result_ns, blocks, 128, 24, 0, OpClass.NORM),
    )
