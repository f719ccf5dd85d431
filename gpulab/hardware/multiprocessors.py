"""What a multiprocessor has for the blocks of a kernel, by compute capability.

Sources: the table of technical specifications per compute capability in NVIDIA's CUDA C++ Programming Guide, and the
allocation units of its Occupancy Calculator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
