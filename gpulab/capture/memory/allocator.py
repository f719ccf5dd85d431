"""Statistics of PyTorch's CUDA allocator, read at the start of each step."""

from __future__ import annotations

import sys
from typing import Any

from gpulab.rows import Rows
from gpulab.tables import ALLOCATOR

ALLOCATOR_INTERVAL_NS = 20_000_000  # steps of 1 ms need no reading each: fifty a second show every trend


class AllocatorReadings:
    """Reads the statistics of every GPU that PyTorch uses; does not initialise CUDA."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._next_ns = 0

    def read(self, at_ns: int) -> None:
        """Record the statistics now, unless the previous reading is less than `ALLOCATOR_INTERVAL_NS` old."""
        if at_ns < self._next_ns:
            return
        cuda = _initialised_cuda()
        if cuda is None:
            return
        self._next_ns = at_ns + ALLOCATOR_INTERVAL_NS
        for device in range(cuda.device_count()):
            # The nested form comes from C++; memory_stats() flattens and sorts it, at three times the cost.
            stats = cuda.memory_stats_as_nested_dict(device)
            if stats and _statistic(stats, "reserved_bytes", "peak"):
                self._rows.append((at_ns, device, *_statistics(stats)))

    def rows(self, began_ns: int) -> Rows:
        """The readings, as rows of tables.ALLOCATOR."""
        # The first reading is taken while the recording is being set up: it counts as its start.
        return ALLOCATOR.of([(max(0, at_ns - began_ns), *statistics) for at_ns, *statistics in self._rows])


def _initialised_cuda() -> Any:
    """torch.cuda, if the user's code has initialised it, else None: reading must not initialise it."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)  # absent while torch is still being imported
    return cuda if cuda is not None and cuda.is_initialized() else None


def _statistics(stats: dict[str, Any]) -> tuple[int, ...]:
    return (
        _statistic(stats, "allocated_bytes", "current"),
        _statistic(stats, "reserved_bytes", "current"),
        _statistic(stats, "inactive_split_bytes", "current"),
        _statistic(stats, "allocated_bytes", "peak"),
        _statistic(stats, "reserved_bytes", "peak"),
        *(int(stats.get(count, -1)) for count in ("num_alloc_retries", "num_device_alloc", "num_ooms")),
    )


def _statistic(stats: dict[str, Any], name: str, kind: str) -> int:
    """One statistic over both pools; -1 if this allocator (cudaMallocAsync, another vendor's) does not have it."""
    return int(stats.get(name, {}).get("all", {}).get(kind, -1))
