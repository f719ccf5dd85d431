"""What kernels reach of a GPU's peaks: the shares of `gpulab.hardware.gpus`, and constants that go by generation.

TRACES and MEDIANS are the sources named there. A median kernel loses about 3 % to a last, half-empty wave of blocks.
That loss is counted by itself here, so the share for float32 products is the median over 0.97.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from gpulab.hardware.gpu_spec import GpuSpec

WAVE_FRAC = 0.97  # of a median kernel's time: what its last wave leaves of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Shares of a GPU's peaks, 0-1, and times that do not shrink with the work."""

    stream: float  # of the memory's rate: elementwise passes
    softmax: float
    norm: float  # layer normalisation, float32
    plain: float  # of float32: large products on the ordinary units
    half: float  # of tensor cores in half precision: large products
    tf32: float
    winograd: float  # of float32: 3 x 3 convolutions; beyond 1, as Winograd's algorithm multiplies less
    direct: float  # of float32: other convolutions
    convolved: float  # of what a product of that size reaches on tensor cores
    attention: float  # of tensor cores in half precision: flash attention forward, heads 64 to 128 wide
    strided: float  # of the memory's rate: copies that change the order of dimensions
    misaligned: tuple[float, float, float]  # of an aligned product in half precision: multiples of 4, of 2, odd ones
    misaligned_tf32: tuple[float, float]  # the same in TF32: multiples of 2, odd ones
    prologue: int  # steps along the inner dimension that the ends of a tile cost as much as, on tensor cores
    step_ns: float  # the least that one step along the inner dimension takes, tensor cores, at full clock
    fixed_ns: float  # of a kernel that does nothing


@cache
def rates(spec: GpuSpec) -> Rates:
    """What kernels reach on this GPU."""
    hopper, ampere = spec.generation >= 90, 80 <= spec.generation < 90
    shares = spec.shares
    return Rates(
        stream=shares.streaming,
        softmax=shares.softmax,
        norm=shares.layer_norm,
        plain=shares.float32_gemm / WAVE_FRAC,
        half=shares.half_gemm,
        tf32=shares.tf32_gemm,
        # TRACES, V100: 1.3 to 1.5 of the peak with Winograd, 0.58 to 0.82 without. Other GPUs by the ratio of their
        # MEDIANS for all 3 x 3 convolutions to the V100's 0.78.
        winograd=1.35 * shares.float32_conv / 0.78,
        direct=0.75 * shares.float32_conv / 0.78,
        convolved=shares.tensor_core_conv,
        attention=shares.flash_attention,
        # TRACES, H100: 0.39 where rows stay whole, 0.15 where they do not. A100: 0.45. Volta: a guess.
        strided=0.35 if hopper else 0.45 if ampere else 0.55,
        # TRACES, H100: odd sizes reach 0.15 to 0.2 of aligned ones, pairs 0.4, as the kernels are those of older GPUs.
        misaligned=(0.9, 0.5, 0.2) if hopper else (0.95, 0.75, 0.45),
        # TRACES, A100: odd sizes reach 0.5 to 0.7.
        misaligned_tf32=(0.5, 0.3) if hopper else (0.8, 0.6),
        # TRACES, H100: 0.65 of the peak with an inner dimension of 768 in 9 waves, 0.76 with 3072.
        prologue=64 if hopper else 48,
        # TRACES, H100: small bfloat16 products take 5 ns for each step, after 3 us.
        step_ns=5.0 if hopper else 7.0,
        # TRACES: elementwise kernels on one block: H100 1.6 to 1.8 us, V100 1.7 to 2.0, B200 2.1 to 2.7.
        fixed_ns=2100.0 if spec.generation >= 100 else 1600.0 if hopper else 1700.0,
    )
