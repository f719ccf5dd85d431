"""Operators on lists of tensors (_foreach, fused optimizers): their kernels, split as PyTorch does, and times."""

from __future__ import annotations

from math import ceil

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.cost_model.gemm_and_memory_time import memory_pass_ns
from gpulab.virtual.cost_model.kernel import Kernel, OpClass
from gpulab.virtual.cost_model.rates import kernel_rates
from gpulab.virtual.cost_model.tensors import bytes_read, bytes_written, c_type, element_count, main_dtype
from gpulab.virtual.op_log.ops import Op

# PyTorch's MultiTensorApply: elements per block, blocks per kernel, and tensors per kernel by the number of lists.
CHUNK_ELEMENTS, MAX_BLOCKS = 65_536, 320
MAX_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
FOREACH_FRAC = 0.92  # of an elementwise pass: V100 trace, 0.76 and 0.84 of the memory bandwidth


def blocks_per_kernel(sizes: tuple[int, ...], depth: int) -> tuple[int, ...]:
    """Return the number of blocks of each kernel for `depth` lists of tensors of these sizes."""
    most = MAX_TENSORS.get(min(max(depth, 1), 5), 30)
    grids: list[int] = []
    blocks = tensors = 0
    for index, size in enumerate(sizes):
        if not size:
            continue
        tensors += 1
        chunks = ceil(size / CHUNK_ELEMENTS)
        for chunk in range(chunks):
            blocks += 1
            last = chunk == chunks - 1
            if blocks == MAX_BLOCKS or (tensors == most and last) or (index == len(sizes) - 1 and last):
                grids.append(blocks)
                # A tensor whose chunks do not all fit continues in the next kernel.
                blocks, tensors = 0, 0 if last else 1
    if blocks:
        grids.append(blocks)
    return tuple(grids)


def foreach_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernels of a _foreach or fused operator; its time is divided among them by their blocks."""
    many = op.list_length or len(op.inputs)
    if not many or not op.inputs:
        return ()
    sizes = tuple(element_count(each) for each in op.inputs[:many])
    depth = max(1, round(len(op.inputs) / many))
    if "_fused_" in op.name:
        # The list of step counters is not split into chunks.
        depth = max(1, sum(1 for each in op.inputs[::many] if element_count(each) > 1))
    traffic_bytes = float(bytes_read(op) + bytes_written(op))
    if "_fused_" in op.name:
        traffic_bytes = _fused_bytes(op, sizes, many)
    grids = blocks_per_kernel(sizes, depth)
    if not grids:
        return ()
    name, total = _name(op, depth), sum(grids)
    share = FOREACH_FRAC * kernel_rates(spec).streaming
    fixed = kernel_rates(spec).fixed_ns * 1.2
    kernels = []
    for blocks in grids:
        ns = fixed + memory_pass_ns(traffic_bytes * blocks / total, spec, share, rows=blocks * 4, fixed_factor=0.0)
        kernels.append(Kernel(name, ns, blocks, 512, 46, 0, OpClass.OPTIMIZER))
    if op.name.endswith("_foreach_norm"):
        cleanup = f"void at::native::lpnorm_cleanup<{c_type(main_dtype(op))}, (at::native::NormType)1, float>"
        kernels.append(Kernel(cleanup, fixed, many, 512, 32, 16, OpClass.OPTIMIZER))
    return tuple(kernels)


def _fused_bytes(op: Op, sizes: tuple[int, ...], many: int) -> float:
    """Return the bytes moved: all lists are read; parameters and state are written, gradients are not."""
    groups = [op.inputs[start : start + many] for start in range(0, len(op.inputs), many)]
    lists = [group for group in groups if sum(element_count(each) for each in group) >= 0.9 * sum(sizes)]
    list_bytes = [float(sum(each.bytes for each in group)) for group in lists]
    return 2 * sum(list_bytes) - (list_bytes[1] if len(list_bytes) > 1 else 0.0)


def _name(op: Op, depth: int) -> str:
    c = c_type(op.inputs[0].dtype)
    apply = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    short = op.name.rpartition("::")[2].strip("_")
    if "fused" in short:
        kind = "Adam" if "adam" in short else "Sgd" if "sgd" in short else "Adagrad"
        mode = ", (at::native::ADAM_MODE)1" if short.startswith("fused_adamw") else ""
        functor = f"at::native::Fused{kind}MathFunctor<{c}, {depth}{mode}>"
        return f"{apply}FusedOptimizerTensorListMetadata<{depth}>, {functor} >"
    word = "".join(part.capitalize() for part in short.removeprefix("foreach_").split("_")) or "Op"
    functor = f"at::native::(anonymous namespace)::{word}Functor<{c}, {depth}, 1, 0>"
    return f"{apply}TensorListMetadata<{depth}>, {functor} >"
