"""Training loops with one planted cause each, and its fix, of sizes for a data-centre GPU.

They are ordinary PyTorch without gpulab calls. `PLANTED_LOOPS` lists all; `planted_loop(name)` returns one.
"""

from __future__ import annotations

from benchmarks.gpu_visit.planted_loops.copies import COPIES
from benchmarks.gpu_visit.planted_loops.data import DATA
from benchmarks.gpu_visit.planted_loops.host import HOST
from benchmarks.gpu_visit.planted_loops.kernels import KERNELS
from benchmarks.gpu_visit.planted_loops.memory import MEMORY
from benchmarks.gpu_visit.planted_loops.settings import LoopSettings, PlantedLoop

__all__ = ["PLANTED_LOOPS", "LoopSettings", "PlantedLoop", "planted_loop"]

PLANTED_LOOPS: tuple[PlantedLoop, ...] = (*DATA, *HOST, *COPIES, *KERNELS, *MEMORY)


def planted_loop(name: str) -> PlantedLoop:
    """Return the loop with this name. Raises KeyError if there is none."""
    return {loop.name: loop for loop in PLANTED_LOOPS}[name]
