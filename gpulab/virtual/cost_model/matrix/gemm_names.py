"""Names of matrix product kernels by GPU generation, as in cuBLAS and CUTLASS."""

from __future__ import annotations

_SHORT = {"float16": "f16", "bfloat16": "bf16"}


def float32_gemm_name(generation: int, rows: int, columns: int, layout: str, split: int) -> str:
    """Return the name of a float32 product without tensor cores."""
    tall, wide = max(rows, columns), min(rows, columns)
    if generation >= 90:
        return (
            f"sm80_xmma_gemm_f32f32_f32f32_f32_{layout}_n_tilesize{tall}x{wide}x8_stage3_warpsize2x2x1_ffma_"
            "aligna4_alignc4_execute_kernel__5x_cublas"
        )
    maker = "ampere" if generation >= 80 else "volta" if generation >= 70 else "maxwell"
    sliced = "_sliced1x4" if tall * wide <= 64 * 32 and split > 1 else ""
    return f"{maker}_sgemm_{tall}x{wide}{sliced}_{layout}"


def tf32_gemm_name(generation: int, rows: int, columns: int, layout: str, align: int) -> str:
    """Return the name of a float32 product with TF32 on tensor cores."""
    tile = _tile(rows, columns)
    if align < 4 or generation < 90:
        kernel = f"cutlass_80_tensorop_s1688gemm_{tile}_32x3_{layout}_align{min(align, 4)}"
        return f"void cutlass::Kernel2<{kernel}>({kernel}::Params)"
    if generation >= 100:
        return f"nvjet_sss_{rows}x{columns}_32x4_1x2_h_bz_{layout.upper()}T"
    return (
        f"sm90_xmma_gemm_f32f32_tf32f32_f32_{layout}_n_tilesize{tile}x32_"
        "warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
    )


def half_gemm_name(generation: int, dtype: str, rows: int, columns: int, layout: str, align: int) -> str:
    """Return the name of a float16 or bfloat16 product on tensor cores."""
    kind, tile = _SHORT.get(dtype, "f16"), _tile(rows, columns)
    if align < 8:
        return _misaligned(generation, kind, tile, layout, align)
    if generation >= 100:
        return f"nvjet_{'tst' if kind == 'bf16' else 'hsh'}_{rows}x{columns}_64x4_1x2_h_bz_{layout.upper()}T"
    if generation >= 90:
        return (
            f"sm90_xmma_gemm_{kind}{kind}_{kind}f32_f32_{layout}_n_tilesize{tile}x64_"
            "warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas"
        )
    if generation >= 80:
        short_type = "fp16" if kind == "f16" else kind
        return f"ampere_{short_type}_s16816gemm_{short_type}_{tile}_ldg8_f2f_stages_32x5_{layout}"
    if generation >= 75:
        return f"turing_fp16_s1688gemm_fp16_{tile}_ldg8_f2f_{layout}"
    return f"volta_fp16_s884gemm_fp16_{tile}_ldg8_f2f_{layout}"


def _misaligned(generation: int, kind: str, tile: str, layout: str, align: int) -> str:
    if generation < 75:
        kernel = f"cutlass_70_tensorop_f16_s884gemm_f16_{tile}_{layout}_align{align}"
    elif generation < 80 or align == 1:  # for odd sizes, newer GPUs run Turing kernels, too
        kernel = f"cutlass_75_tensorop_{kind}_s1688gemm_{kind}_{tile}_{layout}_align{align}"
    else:
        kernel = f"cutlass_80_tensorop_{kind}_s16816gemm_{kind}_{tile}_32x4_{layout}_align{align}"
    return f"void cutlass::Kernel2<{kernel}>({kernel}::Params)"


def half_gemm_name_without_tensor_cores(dtype: str, rows: int, columns: int, layout: str) -> str:
    """Return the name of a half-precision product on a GPU without tensor cores for it."""
    if dtype == "bfloat16":
        return "void magma_sgemmEx_kernel<float, __nv_bfloat16, __nv_bfloat16, true, false, 6, 4, 6, 3, 4>"
    return f"maxwell_fp16_sgemm_fp16_{_tile(rows, columns)}_{layout}"


def split_k_reduce_name(dtype: str) -> str:
    """Return the name of the reduction kernel of a split-K product."""
    kind = {"float16": "__half", "bfloat16": "__nv_bfloat16"}.get(dtype, "float")
    return (
        f"void cublasLt::splitKreduce_kernel<32, 16, int, float, {kind}, float, {kind}, true, false, false>"
        "(cublasLt::cublasSplitKParams<float>)"
    )


def _tile(rows: int, columns: int) -> str:
    return f"{max(rows, columns)}x{min(rows, columns)}"
