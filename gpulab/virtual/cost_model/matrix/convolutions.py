"""Convolutions, forward and backward: as implicit matrix products, by Winograd's algorithm, or depthwise."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.cost_model.gemm_and_memory_time import (
    GEMM_MEMORY_FRAC,
    GemmShape,
    GemmUnits,
    fastest_tiling,
    float32_units,
    memory_pass_ns,
    tensor_core_units,
)
from gpulab.virtual.cost_model.kernel import Kernel, OpClass
from gpulab.virtual.cost_model.rates import kernel_rates
from gpulab.virtual.cost_model.tensors import HALF_DTYPES, bytes_per_element, c_type, detail, element_count
from gpulab.virtual.op_log.ops import Op, TensorInfo

MIN_CHANNELS = 8  # minimum channels for tensor cores; fewer are padded with zeros
WEIGHT_GRADIENT_FRAC = 0.85  # weight gradient, which sums over the batch in parts: V100 trace, 0.65 instead of 0.75
DEPTHWISE_FRAC = 0.45  # of the memory bandwidth: a guess; these kernels read every pixel several times
# NCHW-to-NHWC conversions, of an elementwise pass; H100 trace: 0.35, and less with three channels.
LAYOUT_FRAC, LAYOUT_HOPPER_FRAC = 0.60, 0.35
NCHW_TF32_FRAC = 0.8  # NCHW relative to channels last: cuDNN has TF32 kernels for both; a guess


@dataclass(frozen=True, slots=True)
class Convolution:
    """The tensors and parameters of one convolution."""

    image: TensorInfo
    weight: TensorInfo
    result: TensorInfo
    groups: int
    transposed: bool

    @property
    def filter_positions(self) -> int:
        """Number of filter positions (kernel height times width)."""
        return prod(self.weight.sizes[2:])

    @property
    def gemm_shape(self) -> GemmShape:
        """The matrix product that computes the forward convolution."""
        small, large = (self.image, self.result) if self.transposed else (self.result, self.image)
        pixels = small.sizes[0] * prod(small.sizes[2:])
        return GemmShape(
            self.groups, pixels, large.sizes[1] // self.groups * self.filter_positions, small.sizes[1] // self.groups
        )

    @property
    def uses_winograd(self) -> bool:
        """Whether Winograd's algorithm applies: 3 x 3, stride 1, one group, at least 16 channels."""
        same = self.image.sizes[2:] == self.result.sizes[2:] or all(
            0 <= before - after <= 2 for before, after in zip(self.image.sizes[2:], self.result.sizes[2:], strict=False)
        )
        return self.weight.sizes[2:] == (3, 3) and same and self.groups == 1 and self.weight.sizes[1] >= 16


def convolution_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernels of a convolution, forward or backward."""
    return _backward_kernels(op, spec) if "backward" in op.name else _forward_kernels(op, spec)


def _forward_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    if len(op.inputs) < 2 or not op.outputs or not _are_images(op.inputs[0], op.inputs[1], op.outputs[0]):
        return ()
    sizes = _sizes(op, op.inputs[0], op.inputs[1], op.outputs[0])
    kernels = list(_product_kernels(op, spec, sizes, "fprop"))
    if len(op.inputs) > 2:
        traffic_bytes = 2.0 * sizes.result.bytes
        kernels.append(_bias(sizes.result, traffic_bytes, spec))
    return tuple(kernels)


def _backward_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernels of the gradients that are outputs: of the image, the weight, the bias."""
    if len(op.inputs) < 3 or not _are_images(*op.inputs[:3]):
        return ()
    result, image, weight = op.inputs[:3]
    if op.name.endswith("cudnn_convolution_backward"):
        image, result = result, image
    sizes = _sizes(op, image, weight, result)
    kernels: list[Kernel] = []
    output_sizes = [each.sizes for each in op.outputs]
    if image.sizes in output_sizes:
        kernels += _product_kernels(op, spec, sizes, "dgrad")
    if weight.sizes in output_sizes:
        kernels += _product_kernels(op, spec, sizes, "wgrad")
    bias = (result.sizes[1],)
    if bias in output_sizes:
        kernels.append(_bias_gradient(result, spec))
    return tuple(kernels)


def _are_images(*tensors: TensorInfo) -> bool:
    """Whether all tensors have a batch, channel and spatial dimension, and none is empty."""
    dimensions = {len(each.sizes) for each in tensors}
    return len(dimensions) == 1 and min(dimensions) >= 3 and all(element_count(each) for each in tensors)


def _sizes(op: Op, image: TensorInfo, weight: TensorInfo, result: TensorInfo) -> Convolution:
    """Return the sizes. The number of groups is recorded by the device, or follows from the channels of the weight."""
    transposed = detail(op, "transposed") == "True"
    recorded_groups = detail(op, "groups")
    inward = weight.sizes[0] if transposed else weight.sizes[1]
    groups = int(recorded_groups) if recorded_groups else 1 if transposed else max(1, image.sizes[1] // max(1, inward))
    return Convolution(image, weight, result, groups, transposed)


def _product_kernels(op: Op, spec: GpuSpec, sizes: Convolution, part: str) -> tuple[Kernel, ...]:
    """Return the kernels of one of the three products: fprop, dgrad (image gradient), wgrad (weight gradient)."""
    traffic_bytes = float(sizes.image.bytes + sizes.weight.bytes + sizes.result.bytes)
    dtype = sizes.image.dtype
    if sizes.groups > 1 and sizes.weight.sizes[1] == 1:
        return (_depthwise(spec, sizes, part, traffic_bytes),)
    shape = _shape_of(sizes, part)
    half = dtype in HALF_DTYPES and spec.generation >= 70 and (dtype != "bfloat16" or bool(spec.bfloat16_flops_per_s))
    tf32 = dtype == "float32" and op.tf32 and bool(spec.tf32_flops_per_s)
    if not half and not tf32:
        return _without_tensor_cores(spec, sizes, part, shape, traffic_bytes)
    return _on_tensor_cores(spec, sizes, part, shape, traffic_bytes, half)


def _shape_of(sizes: Convolution, part: str) -> GemmShape:
    shape = sizes.gemm_shape
    if part == "wgrad":
        return GemmShape(shape.batch, shape.columns, shape.rows, shape.inner)
    if part == "dgrad":
        pixels = sizes.image.sizes[0] * prod(sizes.image.sizes[2:])
        strided = max(1, pixels // max(1, shape.rows))  # with a stride, each pixel meets only part of the filter
        inner = max(1, shape.columns * sizes.filter_positions // strided)
        return GemmShape(shape.batch, pixels, inner, shape.inner // sizes.filter_positions)
    return shape


def _without_tensor_cores(
    spec: GpuSpec, sizes: Convolution, part: str, shape: GemmShape, traffic_bytes: float
) -> tuple[Kernel, ...]:
    gpu_rates = kernel_rates(spec)
    share = gpu_rates.winograd_conv if sizes.uses_winograd else gpu_rates.direct_conv
    share *= WEIGHT_GRADIENT_FRAC if part == "wgrad" else 1.0
    if sizes.image.dtype == "float64":
        share *= spec.float64_share
    name = _float32_name(spec, sizes, part, shape)
    best = fastest_tiling(shape, spec, float32_units(spec, share), traffic_bytes)
    main = Kernel(
        name,
        best.ns + best.split_k_reduce_ns,
        best.blocks,
        256,
        126,
        49_152 if sizes.uses_winograd else 6_400,
        OpClass.CONVOLUTION,
    )
    if not sizes.uses_winograd or part == "wgrad":
        return (main,)
    c = c_type(sizes.image.dtype)
    tiles = (
        f"void cudnn::winograd::generateWinogradTilesKernel<0, {c}, {c}>"
        f"(cudnn::winograd::GenerateWinogradTilesParams<{c}, {c}>)"
    )
    filters = max(1, element_count(sizes.weight) // 4096)
    filters_ns = memory_pass_ns(3.0 * sizes.weight.bytes, spec, gpu_rates.streaming)
    return Kernel(tiles, filters_ns, filters, 128, 40, 8704, OpClass.CONVOLUTION), main


def _float32_name(spec: GpuSpec, sizes: Convolution, part: str, shape: GemmShape) -> str:
    c = c_type(sizes.image.dtype)
    maker = "ampere" if spec.generation >= 80 else "volta" if spec.generation >= 70 else "maxwell"
    if part == "wgrad":
        return f"void cudnn::cnn::wgrad_alg0_engine<{c}, 128, 6, 7, 3, 3, 5, false, 512>(int, int, int, {c} const*)"
    if sizes.uses_winograd:
        return f"{maker}_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
    if part == "dgrad":
        return f"{maker}_scudnn_128x64_stridedB_interior_nn_v1"
    if shape.inner < 256:
        return f"{maker}_scudnn_128x64_relu_interior_nn_v1"
    return (
        f"void implicit_convolve_sgemm<{c}, {c}, 1024, 6, 7, 3, 3, 5, 1, false, true, true>"
        f"(int, int, int, {c} const*, int, {c}*, {c} const*)"
    )


def _on_tensor_cores(
    spec: GpuSpec, sizes: Convolution, part: str, shape: GemmShape, traffic_bytes: float, half: bool
) -> tuple[Kernel, ...]:
    gpu_rates, is_nchw = kernel_rates(spec), not sizes.image.channels_last and not sizes.weight.channels_last
    engine = tensor_core_units(
        spec, tf32=not half, factor=gpu_rates.tensor_core_conv * (WEIGHT_GRADIENT_FRAC if part == "wgrad" else 1.0)
    )
    if is_nchw and not half:
        engine = GemmUnits(engine.flops_per_s * NCHW_TF32_FRAC, engine.tiles, engine.prologue_steps, engine.step_ns)
    padded = _padded(sizes, part, shape)
    best = fastest_tiling(padded, spec, engine, traffic_bytes / GEMM_MEMORY_FRAC * gpu_rates.streaming)
    kind = ("bf16" if sizes.image.dtype == "bfloat16" else "f16") if half else "tf32"
    order = "nchw" if is_nchw and not half else "nhwc"
    name = _tensor_name(spec, kind, part, max(best.rows, best.columns), min(best.rows, best.columns), order)
    main = Kernel(name, best.ns + best.split_k_reduce_ns, best.blocks, 256, 232, 81_920, OpClass.CONVOLUTION)
    if not is_nchw or not half:
        return (main,)
    inputs, output = _converted_tensors(sizes, part)
    conversions = [_conversion(each, spec, "nchwToNhwc") for each in inputs]
    return *conversions, main, _conversion(output, spec, "nhwcToNchw")


def _padded(sizes: Convolution, part: str, shape: GemmShape) -> GemmShape:
    """Return the shape with channels padded for tensor cores."""
    channels = max(1, sizes.weight.sizes[1])
    if channels >= MIN_CHANNELS or part == "dgrad":
        return shape
    padded = MIN_CHANNELS if channels > 4 else 4
    if part == "wgrad":
        return GemmShape(shape.batch, shape.rows, shape.inner, shape.columns // channels * padded)
    return GemmShape(shape.batch, shape.rows, shape.inner // channels * padded, shape.columns)


def _converted_tensors(sizes: Convolution, part: str) -> tuple[tuple[TensorInfo, TensorInfo], TensorInfo]:
    """Return the tensors to convert to NHWC before the product, and the one to convert back to NCHW after it."""
    if part == "fprop":
        return (sizes.image, sizes.weight), sizes.result
    if part == "dgrad":
        return (sizes.result, sizes.weight), sizes.image
    return (sizes.image, sizes.result), sizes.weight


def _conversion(tensor_: TensorInfo, spec: GpuSpec, way: str) -> Kernel:
    kind = {"float16": "__half", "bfloat16": "__nv_bfloat16"}.get(tensor_.dtype, "float")
    flags = "false, true" if way == "nchwToNhwc" else "true, false"
    name = (
        f"void cudnn::ops::{way}Kernel<{kind}, {kind}, float, {flags}, (cudnnKernelDataType_t)0>"
        f"(cudnn::ops::{way.replace('To', '2').lower()}_params_t<float>, {kind} const*, {kind}*)"
    )
    blocks = max(1, element_count(tensor_) // 2048)
    share = kernel_rates(spec).streaming * (LAYOUT_HOPPER_FRAC if spec.generation >= 90 else LAYOUT_FRAC)
    ns = memory_pass_ns(2.0 * tensor_.bytes, spec, share)
    return Kernel(name, ns, blocks, 256, 32, 2112, OpClass.COPY)


def _tensor_name(spec: GpuSpec, kind: str, part: str, tall: int, wide: int, order: str) -> str:
    if kind == "tf32":
        if order == "nchw" or spec.generation < 90:
            return (
                f"sm80_xmma_{part}_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_{order}_tilesize{tall}x{wide}x32"
                "_stage3_warpsize2x2x1_g1_tensor16x8x8_execute_kernel__5x_cudnn"
            )
        kernel = f"cutlass_tensorop_s1688{part}_optimized_tf32_{tall}x{wide}_32x3_nhwc_align4"
        return f"void cutlass__5x_cudnn::Kernel<{kernel}>({kernel}::Params)"
    if spec.generation < 75:
        return f"volta_fp16_s884cudnn_fp16_{tall}x{wide}_ldg8_relu_f2f_exp_small_nhwc_tn_v1"
    if spec.generation < 80:
        return f"turing_fp16_s1688cudnn_fp16_{tall}x{wide}_ldg8_relu_f2f_exp_small_nhwc_tn_v1"
    kernel = f"cutlass_tensorop_{kind}_s16816{part}_optimized_{kind}_{tall}x{wide}_32x4_nhwc_align8"
    return f"void cutlass__5x_cudnn::Kernel<{kernel}>({kernel}::Params)"


def _depthwise(spec: GpuSpec, sizes: Convolution, part: str, traffic_bytes: float) -> Kernel:
    c = c_type(sizes.image.dtype)
    way = {"fprop": "forward", "dgrad": "backward", "wgrad": "grad_weight"}[part]
    name = f"void at::native::(anonymous namespace)::conv_depthwise2d_{way}_kernel<3, {c}, int>(...)"
    blocks = max(1, element_count(sizes.result) // 512)
    share = DEPTHWISE_FRAC * kernel_rates(spec).streaming / max(1.0, bytes_per_element(sizes.image) / 2) * 2
    share = min(share, kernel_rates(spec).streaming)
    if part == "wgrad":
        share *= 0.5  # one block per weight sums over the batch
    return Kernel(
        name, memory_pass_ns(traffic_bytes, spec, share, fixed_factor=1.5), blocks, 256, 40, 0, OpClass.CONVOLUTION
    )


def _bias(result: TensorInfo, traffic_bytes: float, spec: GpuSpec) -> Kernel:
    c = c_type(result.dtype)
    name = (
        f"void at::native::elementwise_kernel<128, {4 if bytes_per_element(result) < 4 else 2}, "
        "at::native::gpu_kernel_impl_nocast<"
        f"at::native::CUDAFunctor_add<{c}> >(at::TensorIteratorBase&, at::native::CUDAFunctor_add<{c}> const&)>"
    )
    blocks = max(1, element_count(result) // 512)
    return Kernel(
        name, memory_pass_ns(traffic_bytes, spec, kernel_rates(spec).streaming), blocks, 128, 24, 0, OpClass.ELEMENTWISE
    )


def _bias_gradient(result: TensorInfo, spec: GpuSpec) -> Kernel:
    c = c_type(result.dtype)
    name = (
        f"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<{c}, at::native::func_wrapper_t<{c}, "
        "at::native::sum_functor<float> >, unsigned int, float, 4> >"
    )
    blocks = max(1, result.sizes[1])
    ns = memory_pass_ns(float(result.bytes), spec, 0.8 * kernel_rates(spec).streaming, rows=blocks, fixed_factor=1.5)
    return Kernel(name, ns, blocks, 512, 32, 16, OpClass.REDUCTION)
