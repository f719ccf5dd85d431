"""What fused attention costs: flash, memory-efficient, cuDNN's; forward and backward."""

from __future__ import annotations

from math import ceil

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.cost_model.kernel import Kernel, OpClass
from gpulab.virtual.cost_model.primitives import FIXED_PRODUCT_NS, pass_ns
from gpulab.virtual.cost_model.rates import rates
from gpulab.virtual.cost_model.tensors import HALVES, c_type, detail
from gpulab.virtual.op_log.ops import Op, Tensor

TILE = 128  # queries, and keys, that one block takes at once
# Of flash forward: what others reach. Backward against forward is flash's authors' figure for an A100; the share of
# memory-efficient attention is a guess, cuDNN's on an H100 what its makers show.
BACKWARD = 0.72
EFFICIENT = 0.60
CUDNN = 1.45
NARROW = 0.75  # heads of less than 64
PLAIN = 0.55  # float32: of what large products reach
CHAIN_NS = 2500.0  # of one tile of keys, one after the other: H100, 9 us for 141 tokens, which are two
CHAIN_BACKWARD = 2.5


def attention_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Of _scaled_dot_product_{flash,efficient,cudnn}_attention and of what they call, forward and backward."""
    query, key = _query_and_key(op)
    if query is None or key is None or not query.bytes or not key.bytes or len(query.sizes) != len(key.sizes):
        return ()
    backward = op.name.endswith("_backward")
    batch, heads, length, width, keys = _lengths(op, query, key)
    flops = op.flops or (10.0 if backward else 4.0) * batch * heads * length * keys * width
    causal = detail(op, "causal") == "True"
    blocks = batch * heads * ceil(length / TILE)
    work_ns = _work_ns(op, spec, query, flops, blocks, causal)
    if not causal:  # the last tiles of a row are worked off whole
        work_ns *= ceil(length / TILE) * TILE / length * ceil(keys / TILE) * TILE / keys
    moved = float(sum(each.bytes for each in (*op.inputs, *op.outputs)))
    chain_ns = ceil(keys / TILE) * CHAIN_NS * (CHAIN_BACKWARD if backward else 1.0)
    found = rates(spec)
    ns = FIXED_PRODUCT_NS + max(found.fixed_ns + max(work_ns, chain_ns), pass_ns(moved, spec, found.stream))
    main = Kernel(
        _name(op, spec, query, width, backward), ns, blocks, 128, 255, 147_456 if backward else 49_152,
        OpClass.ATTENTION,
    )  # fmt: skip
    return _around(op, spec, query, main, blocks) if backward else (main,)


def _query_and_key(op: Op) -> tuple[Tensor | None, Tensor | None]:
    """The first two of several dimensions; in backward the gradient stands before them."""
    first = 1 if op.name.endswith("_backward") else 0
    wide = [each for each in op.inputs if len(each.sizes) in (3, 4)]
    if len(wide) < first + 2:
        return None, None
    return wide[first], wide[first + 1]


def _lengths(op: Op, query: Tensor, key: Tensor) -> tuple[int, int, int, int, int]:
    """Batch, heads, queries, width, keys."""
    if len(query.sizes) == 3:  # sequences of different lengths, one after another
        return 1, query.sizes[1], query.sizes[0], query.sizes[2], key.sizes[0]
    if "_scaled_dot_product_" in op.name:
        return query.sizes[0], query.sizes[1], query.sizes[2], query.sizes[3], key.sizes[2]
    return query.sizes[0], query.sizes[2], query.sizes[1], query.sizes[3], key.sizes[1]


def _work_ns(op: Op, spec: GpuSpec, query: Tensor, flops: float, blocks: int, causal: bool) -> float:
    """The arithmetic, in waves of blocks."""
    reached = _reached(op, spec, query) * (BACKWARD if op.name.endswith("_backward") else 1.0)
    if query.sizes[-1] < 64:
        reached *= NARROW
    even = blocks / spec.multiprocessors
    if not causal:
        return flops / reached * 1e9 * ceil(even) / even
    # Half of the scores, and the half of the tiles on the diagonal that is computed in vain. Blocks fill one
    # another's gaps, but the longest takes twice as long as the mean.
    keys = max(TILE, max(query.sizes[1:3]))
    return flops / reached * 1e9 * min(1.0, 0.5 + TILE / 2 / keys) * max(1.0, 2.0 / even)


def _reached(op: Op, spec: GpuSpec, query: Tensor) -> float:
    """Operations per second of long sequences, forward."""
    found = rates(spec)
    usable = query.dtype in HALVES and (query.dtype != "bfloat16" or bool(spec.bfloat16_flops_per_s))
    if not usable or spec.generation < 70:
        return spec.float32_flops_per_s * found.plain * PLAIN
    reached = spec.half_flops_per_s * found.attention
    if "efficient" in op.name:
        return reached * EFFICIENT
    return reached * CUDNN if "cudnn" in op.name else reached


def _name(op: Op, spec: GpuSpec, query: Tensor, width: int, backward: bool) -> str:
    wide = next((each for each in (32, 64, 96, 128, 192, 256) if width <= each), 256)
    if "efficient" in op.name:
        kind = {"float16": "f16", "bfloat16": "bf16"}.get(query.dtype, "f32")
        arch = 80 if spec.generation >= 80 else spec.generation // 5 * 5
        shape = f"64x64_k{wide}" if backward else "64x64_rf" if width <= 64 else "64x128_rf"
        letter, role = ("B", "Backward") if backward else ("F", "")
        arguments = f"{_cutlass(query)}, cutlass::arch::Sm{arch}, true"
        return (
            f"fmha_cutlass{letter}_{kind}_aligned_{shape}_sm{arch}"
            f"(PyTorchMemEffAttention::Attention{role}Kernel<{arguments}>::Params)"
        )
    if "cudnn" in op.name:
        part = "bprop" if backward else "fprop"
        return f"cudnn_generated_fort_native_sdpa_sm{spec.generation}_flash_{part}_wgmma_f16_knob_7_64x{wide}x{wide}"
    kind = _cutlass(query)
    if backward:
        traits = f"pytorch_flash::Flash_bwd_kernel_traits<{wide}, 64, 128, 8, 2, 4, 4, false, false, {kind}>"
        return f"void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<{traits}, false>"
    traits = f"pytorch_flash::Flash_fwd_kernel_traits<{wide}, 128, 64, 4, false, false, {kind}>"
    return f"void pytorch_flash::flash_fwd_kernel<{traits}, false>(pytorch_flash::Flash_fwd_params)"


def _cutlass(query: Tensor) -> str:
    return {"float16": "cutlass::half_t", "bfloat16": "cutlass::bfloat16_t"}.get(query.dtype, c_type(query.dtype))


def _around(op: Op, spec: GpuSpec, query: Tensor, main: Kernel, blocks: int) -> tuple[Kernel, ...]:
    """Before backward the sums of gradient times output; after flash's, its query gradient becomes half again."""
    found = rates(spec)
    dot_ns = pass_ns(2.0 * query.bytes, spec, found.stream)
    if "efficient" in op.name:
        c = c_type(query.dtype)
        name = f"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<{c}, at::native::sum_functor<{c}> > >"
        return Kernel(name, dot_ns, blocks, 128, 32, 16, OpClass.REDUCTION), main
    traits = f"pytorch_flash::Flash_bwd_kernel_traits<{query.sizes[-1]}, 64, 128, 8, 2, 4, 4, {_cutlass(query)}>"
    dot = f"void pytorch_flash::flash_bwd_dot_do_o_kernel<true, {traits}>(pytorch_flash::Flash_bwd_params)"
    convert = f"void pytorch_flash::flash_bwd_convert_dq_kernel<{traits}>(pytorch_flash::Flash_bwd_params, int)"
    convert_ns = pass_ns(3.0 * query.bytes, spec, found.stream)  # read in float32, written in half
    return (
        Kernel(dot, dot_ns, blocks, 256, 40, 0, OpClass.ATTENTION),
        main,
        Kernel(convert, convert_ns, blocks, 256, 40, TILE * 128, OpClass.ATTENTION),
    )
