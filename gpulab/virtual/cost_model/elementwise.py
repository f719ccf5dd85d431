"""Elementwise operators, copies, fills, reductions and pooling: kernels that are bound by memory bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from gpulab.hardware.gpu_spec import GpuSpec
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
    largest_tensor,
    main_dtype,
)
from gpulab.virtual.op_log.ops import Op, TensorInfo

_ARITHMETIC = {
    "add": "at::native::CUDAFunctor_add<{c}>",
    "sub": "at::native::CUDAFunctor_add<{c}>",
    "rsub": "at::native::CUDAFunctor_add<{c}>",
    "mul": "at::native::BinaryFunctor<{c}, {c}, {c}, at::native::binary_internal::MulFunctor<float> >",
    "div": "at::native::BinaryFunctor<{c}, {c}, {c}, at::native::binary_internal::DivFunctor<float> >",
    "fill": "at::native::FillFunctor<{c}>",
    "relu": "at::native::(anonymous namespace)::launch_clamp_scalar(at::TensorIteratorBase&)",
    "gelu": "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)",
    "gelu_backward": "at::native::GeluBackwardCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)",
    "masked_fill": "at::native::(anonymous namespace)::masked_fill_kernel(at::TensorIterator&, c10::Scalar const&)",
    "where": "at::native::(anonymous namespace)::where_kernel_impl(at::TensorIterator&)",
    "pow": "at::native::(anonymous namespace)::pow_tensor_scalar_kernel_impl<{c}, {c}>",
    "native_dropout_backward": "at::native::(anonymous namespace)::masked_scale_kernel<bool, {c}, float>",
}
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
FILLS = (
    "fill", "zero", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones",
    "new_full", "scalar_tensor", "arange", "linspace", "eye", "logspace",
)  # fmt: skip
RANDOM = (
    "bernoulli", "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "uniform", "normal",
    "exponential", "random", "geometric", "cauchy", "log_normal", "poisson",
)  # fmt: skip
# Number of elementwise kernels of a loss before its mean, as PyTorch composes it; 1 if not listed.
_LOSSES = {"binary_cross_entropy_with_logits": 4, "binary_cross_entropy": 1, "kl_div": 2, "huber_loss": 1}
# Bound by arithmetic, not by memory: A100 and H100 traces, tanh and GELU at 0.72 to 0.78 of the peak bandwidth.
_HEAVY = (
    "gelu", "gelu_backward", "tanh", "erf", "exp", "log", "pow", "sigmoid", "silu", "silu_backward", "mish", "sin",
    "cos", "erfinv", "lgamma", "digamma", "softplus", "softplus_backward",
)  # fmt: skip
HEAVY_FRAC = 0.88  # of an elementwise pass
CAT_FRAC = 0.75  # of an elementwise pass: A100 trace 0.6 to 0.8; H100 0.35
CAT_HOPPER_FRAC = 0.45


def elementwise_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernel of an elementwise operator: it reads the inputs and writes the outputs once."""
    most = largest_tensor(op)
    if most is None or not most.bytes:
        return ()
    name, share = base_name(op.name), kernel_rates(spec).streaming
    if "loss" in name or name in _LOSSES:
        return _loss(op, spec, name, most)
    traffic_bytes = float(bytes_read(op) + bytes_written(op))
    if name in FILLS:
        traffic_bytes = float(bytes_written(op))
    if name in _HEAVY:
        share *= HEAVY_FRAC
    if name == "native_dropout" and op.inputs:
        return (_dropout(op, spec, traffic_bytes),)
    if name in RANDOM:
        return (_random(op, spec),)
    strided = any(not each.contiguous and not each.channels_last and each.bytes * 2 > most.bytes for each in op.inputs)
    blocks = max(1, element_count(most) // (512 if bytes_per_element(most) > 1 else 1024))
    kernel_name = _elementwise_name(name, main_dtype(op), len(op.inputs) + 1, strided, bytes_per_element(most))
    if strided:
        share *= (1.0 + kernel_rates(spec).strided) / 2  # only some of the inputs are read out of order
    return (Kernel(kernel_name, memory_pass_ns(traffic_bytes, spec, share), blocks, 128, 24, 0, OpClass.ELEMENTWISE),)


def _loss(op: Op, spec: GpuSpec, name: str, most: TensorInfo) -> tuple[Kernel, ...]:
    """Return the kernels of a loss: per element, then the mean if the result is a scalar."""
    blocks = max(1, element_count(most) // 512)
    kernel_name = _elementwise_name(name, main_dtype(op), 3, False, bytes_per_element(most))
    passes = _LOSSES.get(name, 1) if "backward" not in name else 1
    ns = memory_pass_ns(
        float(bytes_read(op) + most.bytes) if passes == 1 else 3.0 * most.bytes, spec, kernel_rates(spec).streaming
    )
    kernel = Kernel(kernel_name, ns, blocks, 128, 32, 0, OpClass.ELEMENTWISE)
    if not op.outputs or element_count(op.outputs[0]) > 1 or element_count(most) <= 1:
        return (kernel,) * passes
    mean = Op(name="aten::mean", inputs=(most,), outputs=op.outputs)
    return (*(kernel,) * passes, *reduction_kernels(mean, spec))


def _elementwise_name(name: str, dtype: str, arrays: int, strided: bool, element_bytes: int) -> str:
    c = c_type(dtype)
    functor = _ARITHMETIC.get("fill" if name in FILLS else name)
    if functor is None and name in _COMPARED:
        functor = "at::native::(anonymous namespace)::CompareFunctor<{c}>"
    if functor is None:
        functor = f"at::native::{name}_kernel_cuda(at::TensorIteratorBase&)"
        functor += "::{{lambda()#1}}::operator()() const::{{lambda({c})#1}}"
    functor = functor.format(c=c)
    if strided:
        unrolled = 4 if element_bytes < 4 else 2
        return f"void at::native::elementwise_kernel<128, {unrolled}, at::native::gpu_kernel_impl_nocast<{functor}> >"
    return f"void at::native::vectorized_elementwise_kernel<4, {functor}, std::array<char*, {min(arrays, 4)}ul> >"


def _dropout(op: Op, spec: GpuSpec, traffic_bytes: float) -> Kernel:
    main = op.inputs[0]
    c = c_type(main.dtype)
    name = f"void at::native::(anonymous namespace)::fused_dropout_kernel_vec<{c}, float, unsigned int, 1, 4, bool>"
    blocks = min(max(1, element_count(main) // 1024), 8 * spec.multiprocessors)
    return Kernel(
        name,
        memory_pass_ns(traffic_bytes, spec, 0.9 * kernel_rates(spec).streaming),
        blocks,
        256,
        40,
        0,
        OpClass.ELEMENTWISE,
    )


def _random(op: Op, spec: GpuSpec) -> Kernel:
    c = c_type(main_dtype(op))
    name = f"void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<{c}, 4>"
    most = largest_tensor(op)
    assert most is not None, "the caller checks this"
    blocks = min(max(1, element_count(most) // 1024), 8 * spec.multiprocessors)
    share = 0.6 * kernel_rates(spec).streaming  # a guess: generating random numbers takes longer than writing them
    return Kernel(name, memory_pass_ns(float(bytes_written(op)), spec, share), blocks, 256, 40, 0, OpClass.ELEMENTWISE)


def copy_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernels of copy_, clone, cat, pad and similar: a memcpy if possible, else an elementwise kernel."""
    name = base_name(op.name)
    if not op.outputs or not op.outputs[0].bytes:
        return ()
    target = op.outputs[0]
    if name in ("cat", "stack"):
        return (_cat(op, spec, target),)
    if not op.inputs:
        return elementwise_kernels(op, spec)
    source = op.inputs[-1]  # the destination, if it is an input, comes first
    if name in ("copy", "_to_copy", "clone", "contiguous", "_copy_from"):
        return (_copy(source, target, spec),)
    traffic_bytes = float(min(source.bytes, target.bytes) + target.bytes)
    blocks = max(1, element_count(target) // 512)
    kernel_name = _elementwise_name("direct_copy", target.dtype, 2, True, bytes_per_element(target))
    copy = Kernel(
        kernel_name,
        memory_pass_ns(traffic_bytes, spec, 0.7 * kernel_rates(spec).streaming),
        blocks,
        128,
        24,
        0,
        OpClass.COPY,
    )
    if name not in ("constant_pad_nd", "slice_backward", "select_backward", "diagonal_backward"):
        return (copy,)
    fill = _elementwise_name("fill", target.dtype, 1, False, bytes_per_element(target))
    filling = Kernel(fill, memory_pass_ns(float(target.bytes), spec, kernel_rates(spec).streaming), blocks, 128, 16, 0,
                    OpClass.ELEMENTWISE)  # fmt: skip
    return filling, copy


def contiguous_copies(inputs: Sequence[TensorInfo], spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return a copy kernel for each input that an operator makes contiguous before it uses it."""
    strided = (each for each in inputs if not each.contiguous)
    return tuple(_copy(each, replace(each, contiguous=True, channels_last=False), spec) for each in strided)


def _copy(source: TensorInfo, target: TensorInfo, spec: GpuSpec) -> Kernel:
    """Return the kernel of a copy: a memcpy, a change of dtype, or a change of memory layout."""
    gpu_rates = kernel_rates(spec)
    traffic_bytes = float(min(source.bytes, element_count(target) * bytes_per_element(source)) + target.bytes)
    blocks = max(1, element_count(target) // 512)
    same_layout = (source.contiguous, source.channels_last) == (target.contiguous, target.channels_last)
    if element_count(source) != element_count(target):
        same_layout = element_count(source) <= 1  # a broadcast scalar is read from the cache
    if (
        source.dtype == target.dtype
        and same_layout
        and element_count(source) == element_count(target)
        and target.contiguous
    ):
        ns = memory_pass_ns(traffic_bytes, spec, gpu_rates.streaming)
        return Kernel("Memcpy DtoD (Device -> Device)", ns, -1, -1, -1, -1, OpClass.COPY)
    if same_layout:
        name = _cast_name(source.dtype, target.dtype)
        return Kernel(
            name, memory_pass_ns(traffic_bytes, spec, gpu_rates.streaming), blocks, 128, 20, 0, OpClass.ELEMENTWISE
        )
    name = _elementwise_name("direct_copy", target.dtype, 2, True, bytes_per_element(target))
    return Kernel(name, memory_pass_ns(traffic_bytes, spec, gpu_rates.strided), blocks, 128, 26, 0, OpClass.COPY)


def _cast_name(source: str, target: str) -> str:
    if target in HALF_DTYPES and source == "float32":
        way = "bfloat16_copy" if target == "bfloat16" else "float16_copy"
        functor = f"at::native::{way}_kernel_cuda(at::TensorIteratorBase&)::{{lambda(float)#1}}"
        return f"void at::native::vectorized_elementwise_kernel<4, {functor}, std::array<char*, 2ul> >"
    functor = "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const"
    return f"void at::native::unrolled_elementwise_kernel<{functor}::{{lambda({c_type(target)})#1}}, 2ul, 4>"


def _cat(op: Op, spec: GpuSpec, target: TensorInfo) -> Kernel:
    size = bytes_per_element(target)
    name = (
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<at::native::(anonymous namespace)::"
        f"OpaqueType<{size}u>, unsigned int, {max(1, len(target.sizes))}, 128, 1>"
    )
    share = kernel_rates(spec).streaming * (CAT_HOPPER_FRAC if spec.generation >= 90 else CAT_FRAC)
    blocks = min(max(1, element_count(target) // 1024), 4 * spec.multiprocessors)
    return Kernel(name, memory_pass_ns(2.0 * target.bytes, spec, share), blocks, 512, 24, 0, OpClass.COPY)


def reduction_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernel of a reduction; running sums (cumsum) write as much as they read."""
    most = largest_tensor(op)
    if most is None or not most.bytes:
        return ()
    name = base_name(op.name)
    c = c_type(most.dtype)
    kinds = {"mean": "MeanOps", "amax": "MaxOps", "max": "MaxOps", "amin": "MinOps", "argmax": "ArgMaxOps",
             "var": "WelfordOps", "var_mean": "WelfordOps", "std": "WelfordOps", "linalg_vector_norm": "NormTwoOps",
             "norm": "NormTwoOps"}  # fmt: skip
    kind = kinds.get(name, f"func_wrapper_t<{c}, at::native::sum_functor<{c}, float, {c}>")
    kernel_name = f"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<{c}, at::native::{kind}<{c}, float> > >"
    traffic_bytes, share = float(bytes_read(op) + bytes_written(op)), 0.8 * kernel_rates(spec).streaming
    if name.startswith(("cum", "logcum")):
        kernel_name = f"void at::native::tensor_kernel_scan_innermost_dim<{c}, std::plus<{c}> >"
        share *= 0.7  # a guess
    # A sum over the rows of a matrix has few results and many rows: several blocks share a result.
    blocks = max(1, min(element_count(most) // 4096, 8 * spec.multiprocessors))
    return (
        Kernel(
            kernel_name,
            memory_pass_ns(traffic_bytes, spec, share, fixed_factor=1.6),
            blocks,
            512,
            32,
            16,
            OpClass.REDUCTION,
        ),
    )


def pool_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernel of pooling or resampling, forward or backward."""
    most = largest_tensor(op)
    if most is None or not most.bytes:
        return ()
    name, c = base_name(op.name), c_type(main_dtype(op))
    nchw = not most.channels_last
    backward = name.endswith("_backward")
    share = kernel_rates(spec).streaming
    if "max_pool" in name and nchw:
        share *= 0.25 if backward else 0.85  # V100 traces: backward 0.2 to 0.3 of the memory bandwidth, forward 0.8
    elif backward:
        share *= 0.6  # a guess
    way = f"{'backward' if backward else 'forward'}_{'nchw' if nchw else 'nhwc'}"
    kind = "max_pool" if "max_pool" in name else "avg_pool" if "pool" in name else "upsample"
    kernel_name = f"void at::native::(anonymous namespace)::{kind}_{way}<{c}, float>(int, {c} const*)"
    blocks = max(1, element_count(most) // 1024)
    main = Kernel(
        kernel_name,
        memory_pass_ns(float(bytes_read(op) + bytes_written(op)), spec, share),
        blocks,
        256,
        32,
        0,
        OpClass.POOL,
    )
    return (main,)


def row_count_and_length(tensor: TensorInfo) -> tuple[int, int]:
    """Return the number of rows and their length, the last dimension."""
    length = tensor.sizes[-1] if tensor.sizes else 1
    return max(1, prod(tensor.sizes[:-1])), max(1, length)
