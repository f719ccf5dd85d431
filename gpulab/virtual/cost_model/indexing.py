"""Gather and scatter: embeddings, indexing, sorting, nonzero and masked_select."""

from __future__ import annotations

from math import ceil, log2

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.cost_model.gemm_and_memory_time import memory_pass_ns
from gpulab.virtual.cost_model.kernel import Kernel, OpClass
from gpulab.virtual.cost_model.op_classes import base_name
from gpulab.virtual.cost_model.rates import kernel_rates
from gpulab.virtual.cost_model.tensors import bytes_written, c_type, element_count, largest_tensor, main_dtype
from gpulab.virtual.op_log.ops import Op, TensorInfo

GATHER_FRAC = 0.75  # of an elementwise pass: rows of a table in random order; a guess
SCATTER_FRAC = 0.40  # of an elementwise pass: written with atomic additions
SORT_ABOVE_INDICES = 3072  # above this many indices PyTorch sorts them before it sums an embedding's gradient
SORT_PASSES = 4  # passes of a radix sort over 32 bits
_SCATTER_GATHER = (
    "void at::native::_scatter_gather_elementwise_kernel<128, 8, at::native::_cuda_scatter_gather_internal>"
)


def indexing_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernels of an operator that reads or writes by an index."""
    name = base_name(op.name)
    if not largest_tensor(op) or not (op.inputs or name == "randperm"):
        return ()
    if name.startswith(("embedding_dense_backward", "_embedding_bag_dense_backward", "embedding_backward")):
        return _embedding_backward(op, spec)
    if name in ("sort", "argsort", "unique", "_unique2", "randperm", "topk", "kthvalue", "multinomial"):
        return _sort(op, spec, name)
    if name.startswith(("nonzero", "masked_select")):
        return _select(op, spec)
    if name.startswith(("index_put", "_index_put_impl", "index_add", "scatter", "index_copy", "put")):
        return _scatter(op, spec)
    return (_gather(op, spec, name),)


def _kernel(name: str, traffic_bytes: float, spec: GpuSpec, share: float, count: int, fixed: float = 1.2) -> Kernel:
    blocks = max(1, count // 512)
    return Kernel(
        name, memory_pass_ns(traffic_bytes, spec, share, fixed_factor=fixed), blocks, 128, 32, 0, OpClass.INDEXING
    )


def _gather(op: Op, spec: GpuSpec, name: str) -> Kernel:
    """Return the kernel of a gather: it reads as many bytes as it writes, and the index."""
    traffic_bytes = 2.0 * bytes_written(op) + sum(each.bytes for each in op.inputs if each.dtype in ("int64", "int32"))
    c = c_type(main_dtype(op))
    kernel_name = (
        "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long)"
    )
    if name.startswith("index") and name != "index_select":
        kernel_name = (
            "void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<"
            f"at::native::index_kernel_impl<at::native::OpaqueType<{max(1, _width(op))}> > > >"
        )
    elif name.startswith(("gather", "take")):
        kernel_name = _SCATTER_GATHER
    elif name.startswith("_embedding_bag"):
        kernel_name = f"void at::native::(anonymous namespace)::EmbeddingBag_updateOutputKernel_sum_mean<{c}, long>"
    return _kernel(
        kernel_name,
        traffic_bytes,
        spec,
        GATHER_FRAC * kernel_rates(spec).streaming,
        element_count(op.outputs[0]) if op.outputs else 1,
        1.6,
    )


def _width(op: Op) -> int:
    first = op.outputs[0] if op.outputs else op.inputs[0]
    return first.bytes // max(1, element_count(first))


def _scatter(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernel of a scatter: it writes its values at the positions of the index.

    index_put with accumulate=True sorts its index first; that is not modelled.
    """
    values = sum(each.bytes for each in op.inputs[1:])
    c = c_type(main_dtype(op))
    name = base_name(op.name)
    kernel_name = _SCATTER_GATHER
    if "put" in name:
        kernel_name = "void at::native::index_elementwise_kernel<128, 4, at::native::index_put_kernel_impl<float> >"
    elif "add" in name or "copy" in name:
        kernel_name = (
            f"void at::native::(anonymous namespace)::indexFuncLargeIndex<{c}, long, unsigned int, 2, 2, -2, true>"
        )
    count = max((element_count(each) for each in op.inputs[1:]), default=1)
    return (_kernel(kernel_name, 2.0 * values, spec, SCATTER_FRAC * kernel_rates(spec).streaming, count, 1.6),)


def _radix_sort(count: int, spec: GpuSpec) -> list[Kernel]:
    """Return the kernels of a radix sort of keys and positions: histogram, prefix sum, and one pass per 8 bits."""
    traffic_bytes = 24.0 * count
    policy = "cub::DeviceRadixSortPolicy<long, long, int>::Policy900"
    names = [
        f"void cub::DeviceRadixSortHistogramKernel<{policy}, false, long, int>",
        f"void cub::DeviceRadixSortExclusiveSumKernel<{policy}, int>",
        *[f"void cub::DeviceRadixSortOnesweepKernel<{policy}, false, long, long, int, int>"] * SORT_PASSES,
    ]
    share = 0.6 * kernel_rates(spec).streaming
    return [_kernel(name, traffic_bytes, spec, share, count // 4, 1.6) for name in names]


def _embedding_backward(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernels of an embedding's gradient: fill with zeros, then add; many indices are sorted first."""
    gradient = op.inputs[0]
    table = op.outputs[0] if op.outputs else gradient
    indices = next((element_count(each) for each in op.inputs[1:] if each.dtype in ("int64", "int32")), 1)
    c = c_type(gradient.dtype)
    fill = f"void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<{c}>, std::array<char*, 1ul> >"
    blocks = max(1, element_count(table) // 512)
    zeros_ns = memory_pass_ns(float(table.bytes), spec, kernel_rates(spec).streaming)
    filling = Kernel(fill, zeros_ns, blocks, 128, 16, 0, OpClass.ELEMENTWISE)
    share = SCATTER_FRAC * kernel_rates(spec).streaming
    if indices <= SORT_ABOVE_INDICES:
        name = f"void at::native::(anonymous namespace)::embedding_backward_feature_kernel<{c}, float, long>"
        return filling, _kernel(name, 3.0 * gradient.bytes, spec, share, element_count(gradient), 2.0)
    scope = "void at::native::(anonymous namespace)::"
    parts = [
        f"{scope}krn_partials_per_segment<long>(long*, long const*, long const*, long)",
        f"{scope}krn_partial_segment_offset<long>(long*, long const*, long const*, long const*, long)",
    ]
    sums = [
        f"{scope}compute_grad_weight<{c}, long>(long const*, {c} const*, long const*, long, long) /*embedding*/",
        f"{scope}sum_and_scatter<{c}, long>(long const*, {c}*, long, long const*, long const*) /*embedding*/",
    ]
    return (
        filling,
        *_radix_sort(indices, spec),
        *(_kernel(name, 16.0 * indices, spec, share, indices) for name in parts),
        _kernel(sums[0], 2.0 * gradient.bytes, spec, share, element_count(gradient), 1.6),
        _kernel(sums[1], 2.0 * gradient.bytes, spec, share, element_count(gradient), 1.6),
    )


def _sort(op: Op, spec: GpuSpec, name: str) -> tuple[Kernel, ...]:
    main: TensorInfo = op.inputs[0] if op.inputs else op.outputs[0]  # randperm has no inputs
    count = element_count(main)
    if name == "topk":
        c = c_type(main.dtype)
        gather = f"void at::native::sbtopk::gatherTopK<{c}, unsigned int, 2, false>"
        order = f"void at::native::bitonicSortKVInPlace<2, -1, 16, 16, {c}, long, at::native::GTOp<{c}, true> >"
        first = _kernel(gather, 4.0 * main.bytes, spec, 0.5 * kernel_rates(spec).streaming, count, 3.0)
        return first, _kernel(order, float(bytes_written(op)), spec, 0.5 * kernel_rates(spec).streaming, count, 2.0)
    passes = _radix_sort(max(1, count), spec)
    if name in ("unique", "_unique2"):
        flags = "void at::native::(anonymous namespace)::adjacent_difference_kernel<long>"
        return *passes, _kernel(flags, 3.0 * main.bytes, spec, kernel_rates(spec).streaming, count)
    rounds = max(1, ceil(log2(max(2, count)) / 8))
    return tuple(passes[: 2 + rounds])


def _select(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the three kernels of nonzero and masked_select: count, prefix sum, write the positions."""
    main = op.inputs[-1]
    names = (
        "void cub::DeviceReduceSingleTileKernel<cub::DeviceReducePolicy<int, int, cub::Sum>::Policy600>",
        "void cub::DeviceSelectSweepKernel<cub::DispatchSelectIf<cub::CountingInputIterator<long> >::Policy>",
        "void at::native::(anonymous namespace)::write_indices<long>(long*, at::native::TensorDims<long>, int, long)",
    )
    traffic_bytes = (float(main.bytes), float(main.bytes + bytes_written(op)), 2.0 * bytes_written(op))
    share = 0.6 * kernel_rates(spec).streaming
    return tuple(
        _kernel(name, size, spec, share, element_count(main), 1.4)
        for name, size in zip(names, traffic_bytes, strict=True)
    )
