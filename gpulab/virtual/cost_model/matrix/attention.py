"""Fused attention: flash, memory-efficient and cuDNN; forward and backward."""

from __future__ import annotations

from math import ceil

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.cost_model.gemm_and_memory_time import GEMM_FIXED_NS, memory_pass_ns
from gpulab.virtual.cost_model.kernel import Kernel, OpClass
from gpulab.virtual.cost_model.rates import kernel_rates
from gpulab.virtual.cost_model.tensors import HALF_DTYPES, c_type, detail
from gpulab.virtual.op_log.ops import Op, TensorInfo

TILE_TOKENS = 128  # queries and keys per tile
# Speed relative to flash attention forward. Backward: the FlashAttention authors' figure for an A100. Memory-efficient
# attention: a guess. cuDNN on an H100: NVIDIA's figure.
BACKWARD_FRAC = 0.72
EFFICIENT_FRAC = 0.60
CUDNN_FACTOR = 1.45
SMALL_HEAD_FRAC = 0.75  # head dimension below 64
FLOAT32_FRAC = 0.55  # float32, relative to large matrix products
KEY_TILE_NS = 2500.0  # per tile of keys, which run in sequence: H100, 9 us for 141 tokens, which are two tiles
KEY_TILE_BACKWARD_FACTOR = 2.5  # of the forward's CHAIN_NS


def attention_kernels(op: Op, spec: GpuSpec) -> tuple[Kernel, ...]:
    """Return the kernels of _scaled_dot_product_{flash,efficient,cudnn}_attention and the operators that they call."""
    query, key = _query_and_key(op)
    if query is None or key is None or not query.bytes or not key.bytes or len(query.sizes) != len(key.sizes):
        return ()
    backward = op.name.endswith("_backward")
    batch, heads, length, width, keys = _lengths(op, query, key)
    flops = op.flops or (10.0 if backward else 4.0) * batch * heads * length * keys * width
    causal = detail(op, "causal") == "True"
    blocks = batch * heads * ceil(length / TILE_TOKENS)
    work_ns = _work_ns(op, spec, query, flops, blocks, causal)
    if not causal:  # partial tiles at the ends take as long as full ones
        work_ns *= ceil(length / TILE_TOKENS) * TILE_TOKENS / length * ceil(keys / TILE_TOKENS) * TILE_TOKENS / keys
    traffic_bytes = float(sum(each.bytes for each in (*op.inputs, *op.outputs)))
    chain_ns = ceil(keys / TILE_TOKENS) * KEY_TILE_NS * (KEY_TILE_BACKWARD_FACTOR if backward else 1.0)
    gpu_rates = kernel_rates(spec)
    ns = GEMM_FIXED_NS + max(
        gpu_rates.fixed_ns + max(work_ns, chain_ns), memory_pass_ns(traffic_bytes, spec, gpu_rates.streaming)
    )
    main = Kernel(
        _name(op, spec, query, width, backward), ns, blocks, 128, 255, 147_456 if backward else 49_152,
        OpClass.ATTENTION,
    )  # fmt: skip
    return _with_helper_kernels(op, spec, query, main, blocks) if backward else (main,)


def _query_and_key(op: Op) -> tuple[TensorInfo | None, TensorInfo | None]:
    """Return the first two inputs with 3 or 4 dimensions; in backward the gradient comes before them."""
    first = 1 if op.name.endswith("_backward") else 0
    wide = [each for each in op.inputs if len(each.sizes) in (3, 4)]
    if len(wide) < first + 2:
        return None, None
    return wide[first], wide[first + 1]


def _lengths(op: Op, query: TensorInfo, key: TensorInfo) -> tuple[int, int, int, int, int]:
    """Batch, heads, queries, width, keys."""
    if len(query.sizes) == 3:  # sequences of different lengths, one after another
        return 1, query.sizes[1], query.sizes[0], query.sizes[2], key.sizes[0]
    if "_scaled_dot_product_" in op.name:
        return query.sizes[0], query.sizes[1], query.sizes[2], query.sizes[3], key.sizes[2]
    return query.sizes[0], query.sizes[2], query.sizes[1], query.sizes[3], key.sizes[1]


def _work_ns(op: Op, spec: GpuSpec, query: TensorInfo, flops: float, blocks: int, causal: bool) -> float:
    """Return the time of the arithmetic, in waves of blocks."""
    flops_per_s = _flops_per_s(op, spec, query) * (BACKWARD_FRAC if op.name.endswith("_backward") else 1.0)
    if query.sizes[-1] < 64:
        flops_per_s *= SMALL_HEAD_FRAC
    waves = blocks / spec.multiprocessors
    if not causal:
        return flops / flops_per_s * 1e9 * ceil(waves) / waves
    # Half of the scores, plus the masked half of the tiles on the diagonal. Blocks of different length share the GPU
    # well, but the longest takes twice as long as the mean.
    keys = max(TILE_TOKENS, max(query.sizes[1:3]))
    return flops / flops_per_s * 1e9 * min(1.0, 0.5 + TILE_TOKENS / 2 / keys) * max(1.0, 2.0 / waves)


def _flops_per_s(op: Op, spec: GpuSpec, query: TensorInfo) -> float:
    """Return the FLOP/s reached with long sequences, forward."""
    gpu_rates = kernel_rates(spec)
    usable = query.dtype in HALF_DTYPES and (query.dtype != "bfloat16" or bool(spec.bfloat16_flops_per_s))
    if not usable or spec.generation < 70:
        return spec.float32_flops_per_s * gpu_rates.float32_gemm * FLOAT32_FRAC
    flops_per_s = spec.half_flops_per_s * gpu_rates.flash_attention
    if "efficient" in op.name:
        return flops_per_s * EFFICIENT_FRAC
    return flops_per_s * CUDNN_FACTOR if "cudnn" in op.name else flops_per_s


def _name(op: Op, spec: GpuSpec, query: TensorInfo, width: int, backward: bool) -> str:
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


def _cutlass(query: TensorInfo) -> str:
    return {"float16": "cutlass::half_t", "bfloat16": "cutlass::bfloat16_t"}.get(query.dtype, c_type(query.dtype))


def _with_helper_kernels(op: Op, spec: GpuSpec, query: TensorInfo, main: Kernel, blocks: int) -> tuple[Kernel, ...]:
    """Return backward with the sum of gradient times output before it, and flash's dq conversion to half after it."""
    share = kernel_rates(spec).streaming
    dot_ns = memory_pass_ns(2.0 * query.bytes, spec, share)
    if "efficient" in op.name:
        c = c_type(query.dtype)
        name = f"void at::native::reduce_kernel<512, 1, at::native::ReduceOp<{c}, at::native::sum_functor<{c}> > >"
        return Kernel(name, dot_ns, blocks, 128, 32, 16, OpClass.REDUCTION), main
    traits = f"pytorch_flash::Flash_bwd_kernel_traits<{query.sizes[-1]}, 64, 128, 8, 2, 4, 4, {_cutlass(query)}>"
    dot = f"void pytorch_flash::flash_bwd_dot_do_o_kernel<true, {traits}>(pytorch_flash::Flash_bwd_params)"
    convert = f"void pytorch_flash::flash_bwd_convert_dq_kernel<{traits}>(pytorch_flash::Flash_bwd_params, int)"
    convert_ns = memory_pass_ns(3.0 * query.bytes, spec, share)  # read in float32, written in half
    return (
        Kernel(dot, dot_ns, blocks, 256, 40, 0, OpClass.ATTENTION),
        main,
        Kernel(convert, convert_ns, blocks, 256, 40, TILE_TOKENS * 128, OpClass.ATTENTION),
    )
