"""What PyTorch's CUDA allocator has given out and holds, read where a step begins."""

from __future__ import annotations

import sys
from typing import Any

from gpulab.rows import Rows
from gpulab.tables import ALLOCATOR

EVERY_NS = 20_000_000  # steps of a millisecond need no reading each: fifty a second show every trend


class AllocatorReadings:
    """Reads every GPU that PyTorch uses; asks nothing of CUDA while the user's code has not started it."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._next_ns = 0

    def read(self, at_ns: int) -> None:
        """Keep what the allocator says now, unless it was asked a moment ago."""
        if at_ns < self._next_ns:
            return
        cuda = _started()
        if cuda is None:
            return
        self._next_ns = at_ns + EVERY_NS
        for device in range(cuda.device_count()):
            # The nested form is what C++ gives; memory_stats() flattens and sorts it, at three times the cost.
            told = cuda.memory_stats_as_nested_dict(device)
            if told and _of(told, "reserved_bytes", "peak"):
                self._rows.append((at_ns, device, *_figures(told)))

    def rows(self, began_ns: int) -> Rows:
        """What was read, as rows of tables.ALLOCATOR."""
        # The first reading is taken while the recording is being set up: it counts as of its beginning.
        return ALLOCATOR.of([(max(0, at_ns - began_ns), *told) for at_ns, *told in self._rows])


def _started() -> Any:
    """torch.cuda where the user's code has initialised it, else None: asking must not be what starts it."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)  # absent while torch is still being imported
    return cuda if cuda is not None and cuda.is_initialized() else None


def _figures(told: dict[str, Any]) -> tuple[int, ...]:
    return (
        _of(told, "allocated_bytes", "current"),
        _of(told, "reserved_bytes", "current"),
        _of(told, "inactive_split_bytes", "current"),
        _of(told, "allocated_bytes", "peak"),
        _of(told, "reserved_bytes", "peak"),
        *(int(told.get(count, -1)) for count in ("num_alloc_retries", "num_device_alloc", "num_ooms")),
    )


def _of(told: dict[str, Any], what: str, when: str) -> int:
    """One figure of both pools together; -1 where this allocator (cudaMallocAsync, another vendor's) has none."""
    return int(told.get(what, {}).get("all", {}).get(when, -1))
