"""The data sheet of one GPU."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.hardware.architectures import float64_share
from gpulab.hardware.pcie import standard_bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares of a GPU's peaks that large kernels reach, 0-1. `gpulab.hardware.gpus` names their sources.

    Those of float32 kernels include the last, half-empty wave of blocks.
    """

    streaming: float  # of the memory bandwidth: elementwise kernels
    softmax: float  # of the memory bandwidth
    layer_norm: float  # of the memory bandwidth, in float32
    float32_gemm: float  # of the float32 peak: matrix products on CUDA cores
    float32_conv: float  # of the float32 peak: 3 x 3 convolutions on CUDA cores
    half_gemm: float  # of the FP16 peak: matrix products on tensor cores
    tf32_gemm: float  # of the TF32 peak; 0 without TF32
    tensor_core_conv: float  # of the rate of a matrix product of the same size on tensor cores
    flash_attention: float  # of the FP16 peak: forward, heads of 64 to 128


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """The figures of one GPU. None: it has no such units."""

    name: str  # "A100-80 SXM"
    aliases: tuple[str, ...]  # names that users type, the most common first
    driver_name: str  # as nvidia-smi prints it
    driver_pattern: str  # a regular expression that finds all drivers' names of this GPU, and of no other one listed
    compute_capability: str  # "8.0"
    multiprocessors: int
    sm_clock_mhz: int  # the highest
    # Dense arithmetic, a multiply-add as two operations.
    float32_flops_per_s: float
    tf32_flops_per_s: float | None
    half_flops_per_s: float  # FP16 on tensor cores
    bfloat16_flops_per_s: float | None
    memory_bytes_per_s: float
    memory_bytes: int  # nominal, as in the product name
    usable_bytes: int  # the total memory that a process sees
    context_bytes: int  # an allowance for the CUDA context and what cuBLAS and cuDNN load
    l2_bytes: int
    pcie_generation: int
    pcie_lanes: int
    nvlink_bytes_per_s: float | None  # to all other GPUs of the board together, in one direction; None without NVLink
    idle_w: int  # an allowance: with a CUDA context and no work
    power_limit_w: int
    shares: Shares
    peaks_source: str  # of arithmetic, bandwidth, label memory, multiprocessors and power limit
    source: str  # of the other figures

    @property
    def generation(self) -> int:
        """The compute capability as one number: 80 for 8.0, 100 for 10.0."""
        return int(self.compute_capability.replace(".", ""))

    @property
    def fastest_float32_flops_per_s(self) -> float:
        """The peak for products of float32 tensors: that of TF32, or of CUDA cores if there is no TF32."""
        return self.tf32_flops_per_s or self.float32_flops_per_s

    @property
    def float64_share(self) -> float:
        """The maximum rate of float64 as a share of the float32 rate."""
        return float64_share(self.compute_capability)

    @property
    def link_bytes_per_s(self) -> float:
        """The rate of the link to the host in one direction, as the standard states it."""
        rate = standard_bytes_per_s(self.pcie_generation, self.pcie_lanes)
        assert rate is not None
        return rate

    def computes_like(self, other: GpuSpec) -> bool:
        """Whether the two run every kernel and copy equally fast: they may differ in name and size of memory."""
        return _speed(self) == _speed(other)


def _speed(spec: GpuSpec) -> tuple[object, ...]:
    return (
        spec.compute_capability,
        spec.multiprocessors,
        spec.sm_clock_mhz,
        spec.float32_flops_per_s,
        spec.tf32_flops_per_s,
        spec.half_flops_per_s,
        spec.memory_bytes_per_s,
        spec.l2_bytes,
        spec.link_bytes_per_s,
        spec.shares,
    )
