"""Facts about every GPU of one compute capability, whether `gpulab.hardware.gpus` lists it or not.

Compute capability is NVIDIA's term. AMD's GPUs have none, so nothing is known about them here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpulab.run import Gpu

_HALF_RATE, _LOW_RATE = 1 / 2, 1 / 32  # float64 on data-centre GPUs, and on all others


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Common properties of the GPUs of one compute capability. None: unknown."""

    name: str
    # Speed-up of tensor cores over CUDA cores in float32: the minimum over its GPUs.
    tf32_speedup: float | None
    half_speedup: float | None
    float64_share: float  # of the float32 rate, at most
    cores_per_multiprocessor: int  # CUDA cores: units for float32
    threads_per_multiprocessor: int  # resident at once; NVIDIA's CUDA programming guide
    pcie_generation: int  # as its cards are sold


def _architecture(
    name: str, tf32: float | None, half: float | None, float64_share: float, cores: int, threads: int, pcie: int
) -> Architecture:
    return Architecture(
        name=name,
        tf32_speedup=tf32,
        half_speedup=half,
        float64_share=float64_share,
        cores_per_multiprocessor=cores,
        threads_per_multiprocessor=threads,
        pcie_generation=pcie,
    )


# name, TF32 and FP16 as multiples of float32, float64 as a share of float32, cores, threads, PCIe generation
ARCHITECTURES: Mapping[str, Architecture] = {
    "6.0": _architecture("Pascal", None, None, _HALF_RATE, 64, 2048, 3),
    "6.1": _architecture("Pascal", None, None, _LOW_RATE, 128, 2048, 3),
    "7.0": _architecture("Volta", 1.0, 8.0, _HALF_RATE, 64, 2048, 3),
    "7.2": _architecture("Volta", None, None, _LOW_RATE, 64, 2048, 3),
    "7.5": _architecture("Turing", 1.0, 4.0, _LOW_RATE, 64, 1024, 3),
    "8.0": _architecture("Ampere", 8.0, 16.0, _HALF_RATE, 64, 2048, 4),
    "8.6": _architecture("Ampere", 1.0, 2.0, _LOW_RATE, 128, 1536, 4),
    "8.7": _architecture("Ampere", 1.0, 2.0, _LOW_RATE, 128, 1536, 4),
    "8.9": _architecture("Ada", 1.0, 2.0, _LOW_RATE, 128, 1536, 4),
    "9.0": _architecture("Hopper", 7.0, 14.0, _HALF_RATE, 128, 2048, 5),
    "10.0": _architecture("Blackwell", 14.0, 28.0, _HALF_RATE, 128, 2048, 5),
    "10.3": _architecture("Blackwell", 14.0, 28.0, _LOW_RATE, 128, 2048, 5),
    "12.0": _architecture("Blackwell", 1.0, 2.0, _LOW_RATE, 128, 1536, 5),
    "12.1": _architecture("Blackwell", 1.0, 2.0, _LOW_RATE, 128, 1536, 5),
}

_BFLOAT16_SINCE = (8, 0)
_FLOAT8_SINCE = (8, 9)
_FLOAT4_SINCE = (10, 0)
_COUNTERS_SINCE = (9, 0)
_USUAL_PCIE_GENERATION = 3  # for an unknown GPU: nearly every slot supports it


def parse_capability(text: str | None) -> tuple[int, int] | None:
    """Return "8.6" as (8, 6) and "9" as (9, 0); None for None and for text that is no compute capability."""
    match = re.fullmatch(r"([0-9]{1,3})(?:\.([0-9]{1,3}))?", text or "")
    return (int(match[1]), int(match[2] or 0)) if match else None


def architecture_of(gpu: Gpu | None) -> Architecture | None:
    """Return the architecture of a recorded GPU; None if its compute capability is unknown or not listed."""
    return ARCHITECTURES.get(gpu.compute_capability or "") if gpu is not None else None


def threads_per_multiprocessor(capability: str | None) -> int:
    """Return the maximum resident threads of a multiprocessor; for an unlisted capability, the most common value."""
    architecture = ARCHITECTURES.get(capability or "")
    return architecture.threads_per_multiprocessor if architecture else 2048


def float64_share(capability: str) -> float:
    """Return the maximum rate of float64 as a share of the float32 rate."""
    architecture = ARCHITECTURES.get(capability)
    return architecture.float64_share if architecture else _LOW_RATE


def usual_pcie_generation(gpu: Gpu | None) -> int:
    """Return the PCIe generation that GPUs of this kind are sold with, for runs that did not record the link."""
    version = parse_capability(gpu.compute_capability) if gpu is not None else None
    if version is None:
        return _USUAL_PCIE_GENERATION
    same_major = [value for key, value in ARCHITECTURES.items() if key.startswith(f"{version[0]}.")]
    return same_major[0].pcie_generation if same_major else _USUAL_PCIE_GENERATION


def has_bfloat16(gpu: Gpu | None) -> bool:
    """Whether the tensor cores of a recorded GPU support bfloat16; True if its capability is unknown."""
    version = parse_capability(gpu.compute_capability) if gpu is not None else None
    return version is None or version >= _BFLOAT16_SINCE


def has_float8(capability: str) -> bool:
    """Whether the tensor cores support 8-bit floating point."""
    version = parse_capability(capability)
    return version is not None and version >= _FLOAT8_SINCE


def has_float4(capability: str) -> bool:
    """Whether the tensor cores support 4-bit floating point."""
    version = parse_capability(capability)
    return version is not None and version >= _FLOAT4_SINCE


def has_counters(gpu: Gpu) -> bool | None:
    """Whether the driver counts tensor-core activity (GPM), which it does from Hopper on; None if unknown."""
    version = parse_capability(gpu.compute_capability)
    return None if version is None else version >= _COUNTERS_SINCE
