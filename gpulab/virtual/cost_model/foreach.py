"""Operators on lists of tensors: how many kernels a list takes, as PyTorch cuts it up, and what each costs."""

from __future__ import annotations

from math import ceil

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.cost_model.kernel import Kernel, OpClass
from gpulab.virtual.cost_model.primitives import pass_ns
from gpulab.virtual.cost_model.rates import rates
from gpulab.virtual.cost_model.tensors import c_type, elements, main_dtype, read, written
from gpulab.virtual.op_log.ops import Op

# PyTorch's MultiTensorApply: so many elements in a block, so many blocks and tensors in a kernel, by lists at once.
CHUNK, BLOCKS = 65_536, 320
TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
SHARE = 0.92  # of an elementwise pass: V100 trace, 0.76 and 0.84 of the memory's rate


def launches(sizes: tuple[int, ...], depth: int) -> tuple[int, ...]:
    """Blocks of each kernel that lists of tensors of these sizes take, `depth` lists at once."""
    most = TENSORS.get(min(max(depth, 1), 5), 30)
    made: list[int] = []
    blocks = tensors = 0
    for place, size in enumerate(sizes):
        if not size:
            continue
        tensors += 1
        chunks = ceil(size / CHUNK)
        for chunk in range(chunks):
            blocks += 1
            last = chunk == chunks - 1
            if blocks == BLOCKS or (tensors == most and last) or (place == len(sizes) - 1 and last):
                made.append(blocks)
                # A tensor whose chunks do not all fit goes on in the next kernel.
                blocks, tensors = 0, 0 if last else 1
    if blocks:
        made.append(blocks)
    return tuple(made)


def multi_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Of a _foreach or fused operator: its time, divided among its kernels by their blocks."""
    many = op.lists or len(op.inputs)
    if not many or not op.inputs:
        return ()
    sizes = tuple(elements(each) for each in op.inputs[:many])
    depth = max(1, round(len(op.inputs) / many))
    if "_fused_" in op.name:
        # Each tensor's own count of steps is a list of its own, and is not divided in chunks.
        depth = max(1, sum(1 for each in op.inputs[::many] if elements(each) > 1))
    moved = float(read(op) + written(op))
    if "_fused_" in op.name:
        moved = _fused_bytes(op, sizes, many)
    kernels = launches(sizes, depth)
    if not kernels:
        return ()
    name, total = _name(op, depth), sum(kernels)
    share = SHARE * rates(spec).stream
    fixed = rates(spec).fixed_ns * 1.2
    found = [
        Kernel(name, fixed + pass_ns(moved * each / total, spec, share, rows=each * 4, fixed=0.0), each, 512, 46, 0,
               OpClass.OPTIMIZER)
        for each in kernels
    ]  # fmt: skip
    if op.name.endswith("_foreach_norm"):
        cleanup = f"void at::native::lpnorm_cleanup<{c_type(main_dtype(op))}, (at::native::NormType)1, float>"
        found.append(Kernel(cleanup, fixed, many, 512, 32, 16, OpClass.OPTIMIZER))
    return tuple(found)


def _fused_bytes(op: Op, sizes: tuple[int, ...], many: int) -> float:
    """Every list is read once; the state and the parameters are written back, the gradients are not."""
    whole = [op.inputs[place : place + many] for place in range(0, len(op.inputs), many)]
    lists = [group for group in whole if sum(elements(each) for each in group) >= 0.9 * sum(sizes)]
    once = [float(sum(each.bytes for each in group)) for group in lists]
    return 2 * sum(once) - (once[1] if len(once) > 1 else 0.0)


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
