"""Softmax, losses and normalisation: kernels that work by row or by channel."""

from __future__ import annotations

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.cost_model.elementwise import contiguous_copies, row_count_and_length
from gpulab.virtual.cost_model.gemm_and_memory_time import memory_pass_ns
from gpulab.virtual.cost_model.kernel import Kernel, OpClass
from gpulab.virtual.cost_model.op_classes import base_name
from gpulab.virtual.cost_model.rates import kernel_rates
from gpulab.virtual.cost_model.tensors import (
    HALF_DTYPES,
    bytes_per_element,
    bytes_read,
    bytes_written,
    c_type,
    element_count,
)
from gpulab.virtual.op_log.ops import Op, TensorInfo

WARP_ROW_LENGTH = 1024  # rows up to this length are processed by one warp and read once
# Factors on the softmax rate for rows that are not aligned to 16 bytes: they are read several times, and short rows
# leave most threads of a block idle. H100 trace: rows of 3137 bfloat16. Long rows: a guess.
MISALIGNED_FRAC, MISALIGNED_LENGTH, MISALIGNED_LONG_FRAC = 0.35, 3137, 0.70
HALF_NORM_FRAC = 0.70  # of float32's rate: half the bytes, the same arithmetic; H100 trace, 0.39 of the peak
NORM_BACKWARD_FRAC = 0.85  # of the forward rate: input gradient of layer normalisation
NORM_WEIGHT_FRAC = 0.55  # of the memory bandwidth: sums over all rows, by column; a guess
BATCH_NORM_FRAC = 0.85  # of the memory bandwidth: batch normalisation, V100 traces 0.83 to 0.86
# Passes of batch normalisation over an image, reads and writes: mean and variance first, then the result.
TRAINING_PASSES, INFERENCE_PASSES, BACKWARD_PASSES = 3.0, 2.0, 5.0
ROW_FIXED_FACTOR = 1.7  # of an elementwise kernel's fixed time: H100, layer normalisation of 141 rows takes 3.1 us


def softmax_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernels of softmax, log_softmax and nll_loss, forward and backward."""
    if not op.inputs or not op.inputs[0].bytes:
        return ()
    if base_name(op.name).startswith("nll_loss"):
        return _nll_loss(op, spec)
    backward = "backward" in op.name
    main = op.outputs[0] if op.outputs else op.inputs[0]
    rows, length = row_count_and_length(main)
    share = kernel_rates(spec).softmax
    if length > WARP_ROW_LENGTH and length * bytes_per_element(main) % 16:
        share *= min(MISALIGNED_LONG_FRAC, MISALIGNED_FRAC * max(1.0, length / MISALIGNED_LENGTH))
    log = "log" in op.name
    c = c_type(main.dtype)
    if length <= WARP_ROW_LENGTH:
        way, blocks = "backward" if backward else "forward", max(1, rows // 4)
        parameters = f"{max(1, (length - 1).bit_length())}, {'true' if log else 'false'}, false"
        name = f"void (anonymous namespace)::softmax_warp_{way}<{c}, {c}, float, {parameters}>"
    else:
        way, blocks = "Backward" if backward else "Forward", rows
        scope, kind = "at::native::(anonymous namespace)::", "LogSoftMax" if log else "SoftMax"
        parameters = f"{max(1, 16 // bytes_per_element(main))}, {c}, float, {c}"
        name = f"void {scope}cunn_SoftMax{way}<{parameters}, {scope}{kind}{way}Epilogue>"
    traffic_bytes = float(bytes_read(op) + bytes_written(op))
    ns = memory_pass_ns(traffic_bytes, spec, share, rows=blocks, fixed_factor=ROW_FIXED_FACTOR)
    return (Kernel(name, ns, blocks, 128 if length <= WARP_ROW_LENGTH else 1024, 40, 128, OpClass.SOFTMAX),)


def _nll_loss(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernels of nll_loss: it reads one element per row; backward first fills the gradient with zeros."""
    c = c_type(op.inputs[0].dtype)
    targets = max(1, element_count(op.outputs[0]) if "backward" not in op.name and op.outputs else 1)
    traffic_bytes = 32.0 * 8 * max(targets, row_count_and_length(op.inputs[0])[0])  # one memory sector per row
    if "backward" not in op.name:
        name = f"void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<{c}, float, long>"
        # A single block sums all rows.
        return (
            Kernel(name, memory_pass_ns(traffic_bytes, spec, 0.5, fixed_factor=1.8), 1, 32, 32, 0, OpClass.SOFTMAX),
        )
    name = f"void at::native::(anonymous namespace)::nll_loss_backward_reduce_cuda_kernel_2d<{c}, long>"
    gradient = op.outputs[0] if op.outputs else op.inputs[0]
    blocks = max(1, element_count(gradient) // 512)
    fill = f"void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<{c}>, std::array<char*, 1ul> >"
    fill_ns = memory_pass_ns(float(gradient.bytes), spec, kernel_rates(spec).streaming)
    return (
        Kernel(fill, fill_ns, blocks, 128, 16, 0, OpClass.ELEMENTWISE),
        Kernel(name, memory_pass_ns(traffic_bytes, spec, 0.5, fixed_factor=1.8), 1, 32, 32, 0, OpClass.SOFTMAX),
    )


def norm_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernels of layer, batch, group or RMS normalisation, forward or backward."""
    if not op.inputs or not op.inputs[0].bytes:
        return ()
    name, backward = base_name(op.name), "backward" in op.name
    if "batch_norm" in name:
        return _batch_norm(op, spec, backward)
    if ("group_norm" in name or "instance_norm" in name) and len(op.inputs[0].sizes) > 1:
        return _group_norm(op, spec, backward)
    kind = "rms" if "rms" in name else "layer"
    # PyTorch makes the input contiguous first, and in backward also the gradient (expect_contiguous).
    return (*contiguous_copies(op.inputs[: 2 if backward else 1], spec), *_layer_norm(op, spec, kind, backward))


def _layer_norm(op: Op, spec: GpuSpec, kind: str, backward: bool) -> tuple[Kernel, ...]:
    main = op.inputs[0]
    rows, length = row_count_and_length(main)
    c, half = c_type(main.dtype), main.dtype in HALF_DTYPES
    share = kernel_rates(spec).layer_norm * (HALF_NORM_FRAC if half else 1.0)
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
                name,
                memory_pass_ns(traffic_bytes, spec, share, rows=rows, fixed_factor=ROW_FIXED_FACTOR),
                rows,
                128,
                34,
                24,
                OpClass.NORM,
            ),
        )
    input_gradient = f"{scope}layer_norm_grad_input_kernel_vectorized<{c}, float{flag}>"
    traffic_bytes = float(main.bytes * 3)
    ns = memory_pass_ns(traffic_bytes, spec, share * NORM_BACKWARD_FRAC, rows=rows, fixed_factor=ROW_FIXED_FACTOR)
    kernels = [Kernel(input_gradient, ns, rows, 128, 32, 16, OpClass.NORM)]
    if any(each.sizes == (length,) or element_count(each) == length for each in op.outputs[1:]):
        sums = f"{scope}GammaBetaBackwardCUDAKernelTemplate<{c}, float, 32u, 1u, 32u, true, false{flag}>"
        blocks = max(1, length // 32)
        sums_ns = memory_pass_ns(
            float(main.bytes * 2), spec, NORM_WEIGHT_FRAC, rows=max(blocks, rows // 256), fixed_factor=ROW_FIXED_FACTOR
        )
        kernels.append(Kernel(sums, sums_ns, blocks, 512, 48, 4096, OpClass.NORM))
    return tuple(kernels)


def _batch_norm(op: Op, spec: GpuSpec, backward: bool) -> tuple[Kernel, ...]:
    """Return the kernel of cuDNN's batch normalisation, which PyTorch uses for images."""
    main = op.inputs[0]
    c = c_type(main.dtype)
    training = backward or _trains(op)
    passes = BACKWARD_PASSES if backward else TRAINING_PASSES if training else INFERENCE_PASSES
    order = "NHWC" if main.channels_last else "NCHW"
    kind = "__half2" if main.dtype in HALF_DTYPES else c
    if backward:
        name = f"void cudnn::bn_bw_1C11_kernel_new<{kind}, float, float2, 512, true, 1>"
        if main.channels_last:
            name = f"void cudnn::batchnorm_bwtr_nhwc_semiPersist<{kind}, float, float, 512, false>"
    elif training:
        name = f"void cudnn::bn_fw_tr_1C11_kernel_{order}<{kind}, float, int, 512, true, 1, true>"
    else:
        name = f"void cudnn::bn_fw_inf_1C11_kernel_{order}<{kind}, float, true, 1>"
    channels = main.sizes[1] if len(main.sizes) > 1 else 1
    blocks = max(1, channels) if not main.channels_last else max(1, element_count(main) // 8192)
    traffic_bytes = float(main.bytes) * passes
    share = min(BATCH_NORM_FRAC, 0.95 * kernel_rates(spec).streaming)
    return (
        Kernel(
            name,
            memory_pass_ns(traffic_bytes, spec, share, rows=blocks, fixed_factor=ROW_FIXED_FACTOR),
            blocks,
            512,
            32,
            400,
            OpClass.NORM,
        ),
    )


def _trains(op: Op) -> bool:
    """Whether batch normalisation is in training mode: only then are the mean and variance outputs not empty."""
    return len(op.outputs) < 2 or any(element_count(each) > 0 for each in op.outputs[1:3])


def _group_norm(op: Op, spec: GpuSpec, backward: bool) -> tuple[Kernel, ...]:
    main: TensorInfo = op.inputs[0]
    c, share = c_type(main.dtype), kernel_rates(spec).layer_norm
    rows = max(1, main.sizes[0] * 32)
    scope = "void at::native::(anonymous namespace)::"
    moments = f"{scope}{'ComputeInternalGradientsCUDAKernel' if backward else 'RowwiseMomentsCUDAKernel'}<{c}>"
    moments += "/*group_norm*/"
    blocks = max(1, element_count(main) // 512)
    result = f"void at::native::vectorized_elementwise_kernel<4, at::native::GroupNormKernelImplInternal<{c}>, 3ul>"
    many = 2.0 if backward else 1.0
    moments_ns = memory_pass_ns(main.bytes * many, spec, share, rows=rows, fixed_factor=ROW_FIXED_FACTOR)
    result_ns = memory_pass_ns(main.bytes * (many + 1.0), spec, kernel_rates(spec).streaming)
    return (
        Kernel(moments, moments_ns, rows, 512, 32, 16, OpClass.NORM),
        Kernel(result, result_ns, blocks, 128, 24, 0, OpClass.NORM),
    )
