"""Shares of a GPU's peaks that kernels reach, from `gpulab.hardware.gpus`, and constants by GPU generation.

TRACES and MEDIANS are the sources named there. A median kernel loses about 3 % to a last, half-empty wave of blocks.
The cost model counts that loss separately, so the share for float32 products is the median divided by 0.97.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gpulab.hardware.gpu_spec import GpuSpec

WAVE_FRAC = 0.97  # share of the peak that a median kernel keeps in spite of its last, half-empty wave


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRates:
    """Shares of a GPU's peaks, 0-1, and fixed times."""

    streaming: float  # of the memory bandwidth: elementwise kernels
    softmax: float
    layer_norm: float  # layer normalisation, float32
    float32_gemm: float  # of float32: large products without tensor cores
    half_gemm: float  # of tensor cores in half precision: large products
    tf32_gemm: float
    winograd_conv: float  # of float32: 3 x 3 convolutions; above 1, because Winograd's algorithm multiplies less
    direct_conv: float  # of float32: other convolutions
    tensor_core_conv: float  # convolutions relative to a matrix product of that size, on tensor cores
    flash_attention: float  # of tensor cores in half precision: flash attention forward, head dimension 64 to 128
    strided: float  # of the memory bandwidth: copies that change the memory layout
    misaligned: tuple[float, float, float]  # of an aligned product in half precision: multiples of 4, of 2, odd ones
    misaligned_tf32: tuple[float, float]  # the same in TF32: multiples of 2, odd ones
    prologue_steps: int  # cost of a tile's prologue and epilogue on tensor cores, in steps along the inner dimension
    step_ns: float  # minimum time of one step along the inner dimension on tensor cores, at full clock
    fixed_ns: float  # time of an empty kernel


@cache
def kernel_rates(spec: GpuSpec) -> KernelRates:
    """Return the shares and fixed times of a GPU."""
    hopper, ampere = spec.generation >= 90, 80 <= spec.generation < 90
    shares = spec.shares
    return KernelRates(
        streaming=shares.streaming,
        softmax=shares.softmax,
        layer_norm=shares.layer_norm,
        float32_gemm=shares.float32_gemm / WAVE_FRAC,
        half_gemm=shares.half_gemm,
        tf32_gemm=shares.tf32_gemm,
        # TRACES, V100: 1.3 to 1.5 of the peak with Winograd, 0.58 to 0.82 without. Other GPUs by the ratio of their
        # MEDIANS for all 3 x 3 convolutions to the V100's 0.78.
        winograd_conv=1.35 * shares.float32_conv / 0.78,
        direct_conv=0.75 * shares.float32_conv / 0.78,
        tensor_core_conv=shares.tensor_core_conv,
        flash_attention=shares.flash_attention,
        # TRACES, H100: 0.39 if rows stay contiguous, 0.15 if not. A100: 0.45. Volta: a guess.
        strided=0.35 if hopper else 0.45 if ampere else 0.55,
        # TRACES, H100: odd sizes reach 0.15 to 0.2 of aligned ones, even sizes 0.4, because older GPUs' kernels run.
        misaligned=(0.9, 0.5, 0.2) if hopper else (0.95, 0.75, 0.45),
        # TRACES, A100: odd sizes reach 0.5 to 0.7.
        misaligned_tf32=(0.5, 0.3) if hopper else (0.8, 0.6),
        # TRACES, H100: 0.65 of the peak with an inner dimension of 768 in 9 waves, 0.76 with 3072.
        prologue_steps=64 if hopper else 48,
        # TRACES, H100: small bfloat16 products take 3 us plus 5 ns per step.
        step_ns=5.0 if hopper else 7.0,
        # TRACES: elementwise kernels with one block: H100 1.6 to 1.8 us, V100 1.7 to 2.0, B200 2.1 to 2.7.
        fixed_ns=2100.0 if spec.generation >= 100 else 1600.0 if hopper else 1700.0,
    )
