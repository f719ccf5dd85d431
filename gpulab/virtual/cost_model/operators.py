"""Kernels that an operator launches on a GPU, with their times; used by the clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.cost_model.elementwise import copy_kernels, elementwise_kernels, pool_kernels, reduction_kernels
from gpulab.virtual.cost_model.foreach import foreach_kernels
from gpulab.virtual.cost_model.indexing import indexing_kernels
from gpulab.virtual.cost_model.kernel import Kernel, OpClass
from gpulab.virtual.cost_model.matrix.attention import attention_kernels
from gpulab.virtual.cost_model.matrix.convolutions import convolution_kernels
from gpulab.virtual.cost_model.matrix.gemm import decomposition_kernels, kernels_by_flops, product_kernels
from gpulab.virtual.cost_model.matrix.rnn import recurrent_kernels
from gpulab.virtual.cost_model.norms import norm_kernels, softmax_kernels
from gpulab.virtual.cost_model.op_classes import has_no_kernel, op_class
from gpulab.virtual.op_log.ops import Op, TensorInfo

__all__ = ["COST_FACTORS", "Kernel", "OpClass", "kernels_of", "op_class"]

# Uncertainty of each class: P10 and P90 of the true time divided by the estimate. Errors of different classes are
# independent; within a class they are fully correlated.
COST_FACTORS: Mapping[OpClass, tuple[float, float]] = {
    # The 10th and 90th percentile of measured float32 kernels against their median: 0.92 to 1.25 on data-centre GPUs,
    # 1.4 on those that throttle. Sustained clocks move all products of a run together.
    OpClass.PRODUCT: (0.82, 1.22),
    OpClass.TENSOR_PRODUCT: (0.78, 1.30),  # few measurements, from one GPU
    OpClass.BATCHED: (0.75, 1.40),  # as measured: layout and small sizes matter more
    OpClass.CONVOLUTION: (0.70, 1.45),  # single layers are off by 39 to 54 %, which partly averages out over a network
    OpClass.ATTENTION: (0.75, 1.40),
    OpClass.RECURRENT: (0.60, 1.70),  # not modelled: cuDNN overlaps layers and keeps weights on the chip
    OpClass.ELEMENTWISE: (
        0.92,
        1.12,
    ),  # measured kernels are within 3 % of their median; which are strided is uncertain
    OpClass.COPY: (0.70, 1.50),
    OpClass.NORM: (0.80, 1.30),
    OpClass.SOFTMAX: (0.80, 1.35),
    OpClass.REDUCTION: (0.75, 1.50),
    OpClass.POOL: (0.60, 1.70),
    OpClass.INDEXING: (0.60, 1.80),
    OpClass.OPTIMIZER: (0.88, 1.15),
    OpClass.PAGEABLE_TO_DEVICE: (0.72, 1.32),  # 5.3 to 9.9 GB/s
    OpClass.PAGEABLE_TO_HOST: (0.5, 1.6),  # the memory is new and is read in page by page, or is not: 1.2 to 14 GB/s
    OpClass.SPIN: (0.95, 1.30),  # cycles are exact; assumes the maximum clock, and a throttled GPU is slower
    OpClass.OTHER: (0.40, 2.50),
}

_COST_MODELS: Mapping[OpClass, Callable[[Op, GpuSpec], tuple[Kernel, ...]]] = {
    OpClass.PRODUCT: product_kernels,
    OpClass.BATCHED: product_kernels,
    OpClass.CONVOLUTION: convolution_kernels,
    OpClass.ATTENTION: attention_kernels,
    OpClass.RECURRENT: recurrent_kernels,
    OpClass.ELEMENTWISE: elementwise_kernels,
    OpClass.COPY: copy_kernels,
    OpClass.NORM: norm_kernels,
    OpClass.SOFTMAX: softmax_kernels,
    OpClass.REDUCTION: reduction_kernels,
    OpClass.POOL: pool_kernels,
    OpClass.INDEXING: indexing_kernels,
    OpClass.OPTIMIZER: foreach_kernels,
    OpClass.OTHER: decomposition_kernels,
}


def kernels_of(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernels that an operator launches on a GPU, in order, with their times; none for a view."""
    if op.is_view or has_no_kernel(op.name):
        return ()
    return _kernels(op.name, op.inputs, op.outputs, op.flops, op.tf32, op.list_length, op.details, spec)


@lru_cache(maxsize=20_000)
def _kernels(
    name: str, inputs: tuple[TensorInfo, ...], outputs: tuple[TensorInfo, ...], flops: int, tf32: bool, lists: int,
    details: tuple[tuple[str, str], ...], spec: GpuSpec,
) -> tuple[Kernel, ...]:  # fmt: skip
    """Return the kernels of an operator; cached, because a training loop repeats operators with the same sizes."""
    op = Op(name=name, inputs=inputs, outputs=outputs, flops=flops, tf32=tf32, list_length=lists, details=details)
    # An operator with unexpected inputs costs its FLOPs, or one pass over its inputs and outputs.
    launched = _COST_MODELS[op_class(name)](op, spec)
    return launched or (kernels_by_flops(op, spec) if flops else ()) or elementwise_kernels(op, spec)
