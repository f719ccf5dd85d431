"""Tensor cores or CUDA cores, precision and alignment of a matrix kernel, by its name.

Covers the names of cuBLAS, cuDNN, CUTLASS and similar libraries on NVIDIA GPUs since Volta. Kernels of other vendors
and unclear names are UNKNOWN. Patterns are in lower case, as in `is_matrix`.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import cache
from typing import NamedTuple

from gpulab.hardware.precision import Precision
from gpulab.run import Run


class Cores(IntEnum):
    """The units that multiply."""

    UNKNOWN = 0
    CUDA = 1  # CUDA cores
    TENSOR = 2


class KernelArithmetic(NamedTuple):
    """Units and precision of a kernel."""

    cores: Cores
    precision: Precision


UNKNOWN_ARITHMETIC = KernelArithmetic(Cores.UNKNOWN, Precision.UNKNOWN)

# AMD's libraries: hipBLASLt and Tensile, MIOpen, Composable Kernel. Their names follow different rules.
_AMD_LIBRARIES = re.compile(
    r"cijk_|miopen|igemm_(?:fwd|bwd|wrw)|naive_conv|tensor_operation6device|ck_tile|^_zn2ck|subtensorop"
)
_DOUBLE = re.compile(r"(?<![a-z])dgemm|d884gemm|f64f64|<double")
_HALF = re.compile(
    r"bf16|f16f16|_f16|fp16|half|bfloat16|h884|h1688|h16816|s884|i8816|i16832|e4m3|e5m2|e2m1|hgemm|fp8|int8"
)
# Kernels that exist for tensor cores only.
_TENSOR = re.compile(
    r"nvjet|wgmma|gmma|tensorop|hmma|imma|qmma|omma|16816|16832|h1688|s1688|h884|s884|884gemm|884cudnn"
    r"|bmm_\w*e(?:4m3|2m1)|fmhasm\d|flash_(?:fwd|bwd|fprop|bprop)|flash::|fmha_v\d|mha_(?:fwd|bwd)|cutedsl.*fmha"
    r"|sm(?:80|86|89|90|100|120)_xmma_\w*?(?:f16|bf16|tf32|e4m3|e5m2)|tensor\d+x\d+x\d+|tcgen05"
)
_TF32 = re.compile(r"tf32|tensorop_s1688(?:gemm|fprop|dgrad|wgrad)|tensorop_s16816(?:gemm|fprop|dgrad|wgrad)_f32")
# CUDA cores, certain by name: CUDA-core GEMMs, cuDNN's float32 engines, FFT and Winograd in float32.
_CUDA_CORES = re.compile(
    r"ffma|_simt_|simt_sgemm|(?<![a-z])sgemm|convolve_sgemm|scudnn|(?<![a-z])cgemm|gemv|gemmk1_kernel"
    r"|(?:dgrad|wgrad)(?:2d)?_(?:alg\d_)?engine|gemmsn_\w+_kernel|dot_kernel|fft2d_|conv_depthwise|conv2d_grouped_direct"
    r"|winograd\w*<float|splitkreduce"
)
_SINGLE = re.compile(r"sgemm|scudnn|f32f32_f32f32|<float, float|<float,|, float, float|cgemm|fft2d_|winograd\w*<float")
# The letters are the types of input, accumulation and output: t bfloat16, h half, s single, q fp8. cuBLAS 13 writes the
# architecture before them (nvjet_sm90_tst_...).
_NVJET_TYPES = re.compile(r"nvjet_(?:sm\d+\w?_)?([a-z])")
_ALIGNED = re.compile(r"_align(\d+)(?![a-z0-9])")


@cache
def kernel_arithmetic(name: str) -> KernelArithmetic:
    """Return units and precision of a matrix kernel by its name; UNTOLD if unknown."""
    lower = name.lower()
    if _AMD_LIBRARIES.search(lower):
        return UNKNOWN_ARITHMETIC
    if _DOUBLE.search(lower):
        # Since A100, dgemm may run on tensor cores under the same name.
        return KernelArithmetic(Cores.TENSOR if "884" in lower else Cores.UNKNOWN, Precision.FLOAT64)
    if _TENSOR.search(lower):
        return KernelArithmetic(Cores.TENSOR, _on_tensor_cores(lower))
    if _CUDA_CORES.search(lower):
        half = bool(_HALF.search(lower))
        return KernelArithmetic(Cores.CUDA, Precision.HALF if half else _single(lower))
    return KernelArithmetic(Cores.UNKNOWN, Precision.HALF if _HALF.search(lower) else Precision.UNKNOWN)


def _on_tensor_cores(lower: str) -> Precision:
    if _TF32.search(lower) and not re.search(r"bf16|f16|e4m3", lower.replace("tf32", "").replace("_f32", "")):
        return Precision.TF32
    if types := _NVJET_TYPES.search(lower):
        return {"s": Precision.TF32, "d": Precision.FLOAT64}.get(types[1], Precision.HALF)
    if re.search(r"flash|fmha|mha_", lower) and not re.search(r"f32_aligned|float", lower):
        return Precision.HALF
    return Precision.HALF if _HALF.search(lower) else Precision.UNKNOWN


def _single(lower: str) -> Precision:
    return Precision.FLOAT32 if _SINGLE.search(lower) else Precision.UNKNOWN


@cache
def alignment(name: str) -> int | None:
    """Return how many elements a CUTLASS kernel reads at once, by its name (minimum of several); None if unknown."""
    sizes = [int(number) for number in _ALIGNED.findall(name.lower())]
    return min(sizes) if sizes else None


def tf32_setting(run: Run) -> str | None:
    """Return whether TF32 was "on" or "off" for matrix products; None if it was not recorded."""
    new = run.facts.get("matmul_fp32_precision", "none")  # "none": the older setting applies
    if new != "none":
        return "off" if new == "ieee" else "on"
    old = run.facts.get("float32_matmul_precision")
    return None if old is None else "off" if old == "highest" else "on"
