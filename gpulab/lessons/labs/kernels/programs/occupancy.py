"""How many warps of a kernel are resident on a multiprocessor, by the limits of its compute capability.

Sources: the table of technical specifications per compute capability in NVIDIA's CUDA C++ Programming Guide, and the
allocation units of its Occupancy Calculator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpulab.errors import GpulabError
from gpulab.hardware.architectures import ARCHITECTURES
from gpulab.lessons.labs.kernels.programs.launch_record import WARP

REGISTERS = 65_536  # of a multiprocessor, 32 bits each
REGISTER_UNIT = 256  # registers are assigned to a warp in multiples of this
WARP_UNIT = 4  # a multiprocessor has four parts, and each warp belongs to one


@dataclass(frozen=True, kw_only=True)
class BlockLimits:
    """What a multiprocessor has for blocks."""

    blocks: int
    shared_bytes: int
    shared_unit: int  # shared memory is assigned to a block in multiples of this, in bytes
    reserved_bytes: int  # shared memory that the system takes for each block


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """The resident blocks and warps of a kernel on one multiprocessor."""

    blocks: int
    warps: int
    frac: float  # of the warps that fit at most, 0-1
    limit: str  # what allows no further block


def _limits(blocks: int, shared_kib: int, shared_unit: int, reserved_bytes: int) -> BlockLimits:
    return BlockLimits(
        blocks=blocks, shared_bytes=shared_kib * 1024, shared_unit=shared_unit, reserved_bytes=reserved_bytes
    )


LIMITS: Mapping[str, BlockLimits] = {
    "7.0": _limits(32, 96, 256, 0),
    "7.5": _limits(16, 64, 256, 0),
    "8.0": _limits(32, 164, 128, 1024),
    "8.6": _limits(16, 100, 128, 1024),
    "8.9": _limits(24, 100, 128, 1024),
    "9.0": _limits(32, 228, 128, 1024),
    "10.0": _limits(32, 228, 128, 1024),
}


def occupancy(
    threads_per_block: int, *, registers: int = 32, shared_bytes: int = 0, capability: str = "9.0"
) -> Occupancy:
    """Return how many warps of a kernel are resident on a multiprocessor.

    `registers`: per thread. `shared_bytes`: per block. Raises GpulabError for a compute capability without limits here,
    and for a block that fits on no multiprocessor.
    """
    if capability not in LIMITS:
        raise GpulabError(
            f"The occupancy on compute capability {capability} cannot be computed.",
            why=f"its limits are not listed; those of {', '.join(LIMITS)} are",
            fix="choose one of these",
        )
    limits, max_warps = LIMITS[capability], ARCHITECTURES[capability].threads_per_multiprocessor // WARP
    warps = -(-threads_per_block // WARP)
    registers_of_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    resident_by_registers = REGISTERS // registers_of_warp // WARP_UNIT * WARP_UNIT if registers else max_warps
    shared = -(-(shared_bytes + limits.reserved_bytes) // limits.shared_unit) * limits.shared_unit
    by_limit = {
        "warps": max_warps // warps,
        "registers": resident_by_registers // warps,
        "shared memory": limits.shared_bytes // shared if shared else limits.blocks,
        "blocks": limits.blocks,
    }
    limit = min(by_limit, key=lambda name: by_limit[name])
    blocks = by_limit[limit]
    if not blocks:
        raise GpulabError(
            "The kernel cannot be launched.",
            why=f"one block needs more {limit} than a multiprocessor of compute capability {capability} has",
            fix="use a smaller block, or fewer registers or less shared memory for each",
        )
    return Occupancy(blocks=blocks, warps=blocks * warps, frac=blocks * warps / max_warps, limit=limit)
