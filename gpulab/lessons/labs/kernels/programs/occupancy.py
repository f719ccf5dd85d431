"""How many warps of a kernel are resident on a multiprocessor, by the limits of its compute capability.

The limits are in `gpulab.hardware.multiprocessors`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.errors import GpulabError
from gpulab.hardware.architectures import ARCHITECTURES
from gpulab.hardware.multiprocessors import LIMITS, REGISTER_UNIT, REGISTERS, WARP_UNIT
from gpulab.lessons.labs.kernels.programs.launch_record import WARP


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """The resident blocks and warps of a kernel on one multiprocessor."""

    blocks: int
    warps: int
    frac: float  # of the warps that fit at most, 0-1
    limit: str  # what allows no further block


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
