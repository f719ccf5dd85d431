"""Softmax, losses and normalisation: kernels that work by row or by channel."""

from __future__ import annotations

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.cost_model.elementwise import rows_of
from gpulab.virtual.cost_model.kernel import Kernel, OpClass
from gpulab.virtual.cost_model.op_classes import bare
from gpulab.virtual.cost_model.primitives import pass_ns
from gpulab.virtual.cost_model.rates import rates
from gpulab.virtual.cost_model.tensors import HALVES, c_type, elements, read, width, written
from gpulab.virtual.op_log.ops import Op, Tensor

WARP_ROW = 1024  # rows up to this length are processed by one warp and read once
# Factors on the softmax rate for rows that are not aligned to 16 bytes: they are read several times, and short rows
# leave most threads of a block idle. H100 trace: rows of 3137 bfloat16. Long rows: a guess.
ODD_ROWS, ODD_LENGTH, ODD_LONG = 0.35, 3137, 0.70
HALF_NORM = 0.70  # of float32's rate: half the bytes, the same arithmetic; H100 trace, 0.39 of the peak
GRADIENT_NORM = 0.85  # of the forward rate: input gradient of layer normalisation
GAMMA_BETA = 0.55  # of the memory bandwidth: sums over all rows, by column; a guess
CHANNELS = 0.85  # of the memory bandwidth: batch normalisation, V100 traces 0.83 to 0.86
# Passes of batch normalisation over an image, reads and writes: mean and variance first, then the result.
TRAINING, INFERENCE, BACKWARD = 3.0, 2.0, 5.0
ROW_FIXED = 1.7  # of an elementwise kernel's fixed time: H100, layer normalisation of 141 rows takes 3.1 us


def softmax_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernels of softmax, log_softmax and nll_loss, forward and backward."""
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
        parameters = f"{max(1, (length - 1).bit_length())}, {'true' if log else 'false'}, false"
        name = f"void (anonymous namespace)::softmax_warp_{way}<{c}, {c}, float, {parameters}>"
    else:
        way, blocks = "Backward" if backward else "Forward", rows
        scope, kind = "at::native::(anonymous namespace)::", "LogSoftMax" if log else "SoftMax"
        parameters = f"{max(1, 16 // width(main))}, {c}, float, {c}"
        name = f"void {scope}cunn_SoftMax{way}<{parameters}, {scope}{kind}{way}Epilogue>"
    traffic_bytes = float(read(op) + written(op))
    ns = pass_ns(traffic_bytes, spec, share, rows=blocks, fixed=ROW_FIXED)
    return (Kernel(name, ns, blocks, 128 if length <= WARP_ROW else 1024, 40, 128, OpClass.SOFTMAX),)


def _nll_loss(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernels of nll_loss: it reads one element per row; backward first fills the gradient with zeros."""
    c = c_type(op.inputs[0].dtype)
    targets = max(1, elements(op.outputs[0]) if "backward" not in op.name and op.outputs else 1)
    traffic_bytes = 32.0 * 8 * max(targets, rows_of(op.inputs[0])[0])  # one memory sector per row
    if "backward" not in op.name:
        name = f"void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<{c}, float, long>"
        # A single block sums all rows.
        return (Kernel(name, pass_ns(traffic_bytes, spec, 0.5, fixed=1.8), 1, 32, 32, 0, OpClass.SOFTMAX),)
    name = f"void at::native::(anonymous namespace)::nll_loss_backward_reduce_cuda_kernel_2d<{c}, long>"
    gradient = op.outputs[0] if op.outputs else op.inputs[0]
    blocks = max(1, elements(gradient) // 512)
    fill = f"void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<{c}>, std::array<char*, 1ul> >"
    fill_ns = pass_ns(float(gradient.bytes), spec, rates(spec).stream)
    return (
        Kernel(fill, fill_ns, blocks, 128, 16, 0, OpClass.ELEMENTWISE),
        Kernel(name, pass_ns(traffic_bytes, spec, 0.5, fixed=1.8), 1, 32, 32, 0, OpClass.SOFTMAX),
    )


def norm_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernels of layer, batch, group or RMS normalisation, forward or backward."""
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
        traffic_bytes = float(main.bytes * 2)
        return (
            Kernel(
                name, pass_ns(traffic_bytes, spec, share, rows=rows, fixed=ROW_FIXED), rows, 128, 34, 24, OpClass.NORM
            ),
        )
    input_gradient = f"{scope}layer_norm_grad_input_kernel_vectorized<{c}, float{flag}>"
    traffic_bytes = float(main.bytes * 3)
    ns = pass_ns(traffic_bytes, spec, share * GRADIENT_NORM, rows=rows, fixed=ROW_FIXED)
    kernels = [Kernel(input_gradient, ns, rows, 128, 32, 16, OpClass.NORM)]
    if any(each.sizes == (length,) or elements(each) == length for each in op.outputs[1:]):
        sums = f"{scope}GammaBetaBackwardCUDAKernelTemplate<{c}, float, 32u, 1u, 32u, true, false{flag}>"
        blocks = max(1, length // 32)
        sums_ns = pass_ns(float(main.bytes * 2), spec, GAMMA_BETA, rows=max(blocks, rows // 256), fixed=ROW_FIXED)
        kernels.append(Kernel(sums, sums_ns, blocks, 512, 48, 4096, OpClass.NORM))
    return tuple(kernels)


def _batch_norm(op: Op, spec: GpuSpec, backward: bool) -> tuple[Kernel, ...]:
    """Return the kernel of cuDNN's batch normalisation, which PyTorch uses for images."""
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
    traffic_bytes = float(main.bytes) * passes
    share = min(CHANNELS, 0.95 * rates(spec).stream)
    return (
        Kernel(
            name, pass_ns(traffic_bytes, spec, share, rows=blocks, fixed=ROW_FIXED), blocks, 512, 32, 400, OpClass.NORM
        ),
    )


def _trains(op: Op) -> bool:
    """Whether batch normalisation is in training mode: only then are the mean and variance outputs not empty."""
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
