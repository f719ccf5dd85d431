"""Recurrent layers: cuDNN's, with one product for the inputs of all steps, then one per step; and fused cells."""

from __future__ import annotations

from dataclasses import replace

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.cost_model.gemm_and_memory_time import (
    GemmShape,
    fastest_tiling,
    float32_units,
    memory_pass_ns,
    tensor_core_units,
)
from gpulab.virtual.cost_model.kernel import Kernel, OpClass
from gpulab.virtual.cost_model.matrix import gemm_names
from gpulab.virtual.cost_model.rates import kernel_rates
from gpulab.virtual.cost_model.tensors import HALF_DTYPES, bytes_per_element, c_type, detail, element_count
from gpulab.virtual.op_log.ops import Op, TensorInfo

MAX_STEP_TILE = 128 * 64  # largest tile of a step: steps run in sequence, so small tiles use more of the GPU. A guess
MAX_STEPS = 2000  # a longer sequence is modelled as this many steps, each longer in proportion


def recurrent_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernels of _cudnn_rnn, its backward, and the fused cells."""
    if not op.inputs or not op.inputs[0].bytes or not op.inputs[0].sizes:
        return ()
    if "cudnn_rnn" not in op.name:
        return (_cell(op.inputs[0], spec, op),)
    weights = _weights(op)
    steps, batch = _lengths(op, weights)
    if not weights or not steps:
        return (_cell(op.inputs[0], spec, op),)
    kernels: list[Kernel] = []
    for input_weight, state_weight in zip(weights[::2], weights[1::2], strict=False):
        layer = _layer(op, spec, input_weight, state_weight, steps, batch)
        kernels += layer
        if "backward" in op.name:  # two more products over all steps, for the gradients of both weights
            kernels += layer[:1] * 2
    return tuple(kernels)


def _weights(op: Op) -> list[TensorInfo]:
    """Return the weights: for each layer and direction those of the input, then those of the state."""
    gates, hidden = detail(op, "gates"), detail(op, "hidden")
    matrices = [each for each in op.inputs[1:] if len(each.sizes) == 2]
    if gates and hidden:
        return [each for each in matrices if each.sizes[0] == int(gates) * int(hidden)]
    return [each for each in matrices if each.sizes[0] > each.sizes[1] // 8]


def _lengths(op: Op, weights: list[TensorInfo]) -> tuple[int, int]:
    """Return sequence length and batch size; the batch size is that of the state, in any layout of the input."""
    sequence = op.inputs[0]
    if not weights:
        return 0, 0
    state = next(
        (
            each
            for each in op.inputs[1:]
            if len(each.sizes) == 3 and each.sizes[0] == len(weights) // 2 and each.sizes != sequence.sizes
        ),
        None,
    )
    positions = element_count(sequence) // sequence.sizes[-1]
    batch = state.sizes[1] if state is not None else sequence.sizes[1] if len(sequence.sizes) == 3 else 1
    return max(1, round(positions / max(1, batch))), max(1, batch)


def _layer(
    op: Op, spec: GpuSpec, input_weight: TensorInfo, state_weight: TensorInfo, steps: int, batch: int
) -> list[Kernel]:
    """Return the kernels of one layer in one direction: the inputs of all steps, then the steps in sequence."""
    dtype, element_bytes = input_weight.dtype, bytes_per_element(input_weight)
    half = dtype in HALF_DTYPES and spec.generation >= 70
    tf32 = dtype == "float32" and op.tf32 and bool(spec.tf32_flops_per_s)
    engine = tensor_core_units(spec, tf32=tf32) if half or tf32 else float32_units(spec)
    wide, inner = input_weight.sizes
    shape = GemmShape(1, steps * batch, inner, wide)
    tiles = fastest_tiling(
        shape, spec, engine, float(element_bytes) * (shape.rows * inner + inner * wide + shape.rows * wide)
    )
    once = GemmShape(1, batch, state_weight.sizes[1], wide)
    small = replace(engine, tiles=tuple(each for each in engine.tiles if each[0] * each[1] <= MAX_STEP_TILE))
    step = fastest_tiling(
        once,
        spec,
        small,
        float(element_bytes) * (batch * state_weight.sizes[1] + state_weight.bytes / element_bytes + batch * wide),
    )
    modelled_steps = min(steps, MAX_STEPS)
    longer = steps / max(1, modelled_steps)
    name = _name(spec, dtype, tf32, tiles.rows, tiles.columns)
    kernel_name = _name(spec, dtype, tf32, step.rows, step.columns)
    c = c_type(dtype)
    cell = f"void elemWiseRNNcell<{c}, {c}, {c}, (cudnnRNNMode_t)2, (cudnnRNNBiasMode_t)2>"
    cell_ns = memory_pass_ns(float(batch * wide * element_bytes * 2), spec, kernel_rates(spec).streaming) * longer
    kernels = [Kernel(name, tiles.ns + tiles.split_k_reduce_ns, tiles.blocks, 256, 126, 32_768, OpClass.RECURRENT)]
    for _ in range(modelled_steps):
        kernels.append(
            Kernel(
                kernel_name,
                (step.ns + step.split_k_reduce_ns) * longer,
                step.blocks,
                128,
                126,
                16_384,
                OpClass.RECURRENT,
            )
        )
        kernels.append(Kernel(cell, cell_ns, max(1, batch * wide // 1024), 256, 40, 0, OpClass.RECURRENT))
    return kernels


def _name(spec: GpuSpec, dtype: str, tf32: bool, rows: int, columns: int) -> str:
    if dtype in HALF_DTYPES:
        return gemm_names.half_gemm_name(min(spec.generation, 80), dtype, rows, columns, "tn", 8)
    if tf32:
        return gemm_names.tf32_gemm_name(80, rows, columns, "tn", 4)
    return gemm_names.float32_gemm_name(min(spec.generation, 80), rows, columns, "tn", 1)


def _cell(main: TensorInfo, spec: GpuSpec, op: Op) -> Kernel:
    c = c_type(main.dtype)
    traffic_bytes = float(sum(each.bytes for each in (*op.inputs, *op.outputs)))
    kind = "lstm" if "lstm" in op.name else "gru"
    way = "backward" if "backward" in op.name else "forward"
    name = f"void at::native::(anonymous namespace)::kernel::{kind}_cell_{way}<{c}, float, int, 1>"
    blocks = max(1, main.bytes // 2048)
    return Kernel(
        name,
        memory_pass_ns(traffic_bytes, spec, kernel_rates(spec).streaming, fixed_factor=1.2),
        blocks,
        512,
        40,
        0,
        OpClass.RECURRENT,
    )
