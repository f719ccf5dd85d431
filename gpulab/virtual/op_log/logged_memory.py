"""Memory of a virtual GPU that logs every allocation with its time, and the driver calls that it causes."""

from __future__ import annotations

from typing import Any

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.rows import Rows
from gpulab.tables import ALLOCATOR
from gpulab.virtual.clock import VirtualClock
from gpulab.virtual.memory_fit.memory_peaks import SimulatedMemory, non_torch_memory
from gpulab.virtual.op_log.ops import Phase

# Keys of torch.cuda.memory_stats(), in the order of the columns of tables.ALLOCATOR.
_STATS = (
    "allocated_bytes.all.current",
    "reserved_bytes.all.current",
    "inactive_split_bytes.all.current",
    "allocated_bytes.all.peak",
    "reserved_bytes.all.peak",
    "num_alloc_retries",
    "num_device_alloc",
    "num_ooms",
)
_DRIVER_CALLS = {"cudaFree": "num_device_free", "cudaMalloc": "num_device_alloc"}


class LoggedMemory(SimulatedMemory):
    """A simulated allocator that writes allocations, frees and driver calls to the clock's log."""

    def __init__(self, spec: GpuSpec, clock: VirtualClock) -> None:
        super().__init__(spec.usable_bytes, sum(each.bytes for each in non_torch_memory(spec)))
        self._clock = clock
        self._sizes: dict[int, int] = {}
        self._driver_state = (0, 0)
        self._call_counts = dict.fromkeys(_DRIVER_CALLS, 0)
        self._readings: list[tuple[int, ...]] = []

    def allocate(self, key: int, bytes: int, phase: Phase, *more: Any) -> None:
        """Allocate as Memory does, and charge the driver calls that this needs."""
        try:
            super().allocate(key, bytes, phase, *more)
        finally:
            self._charge_driver_calls()
        self._sizes[key] = bytes
        self._log(bytes, key)

    def free(self, key: int) -> None:
        """Free as Memory does, and log it."""
        super().free(key)
        self._log(-self._sizes.pop(key, 0), key)

    def empty_cache(self) -> None:
        """Release unused segments: each is a cudaFree, which synchronises with the GPU."""
        super().empty_cache()
        self._charge_driver_calls()

    def read(self, at_ns: int) -> None:
        """Record torch.cuda.memory_stats() at the current virtual time; `at_ns` is ignored."""
        stats = self.stats()
        self._readings.append((self._clock.now_ns, 0, *(stats[key] for key in _STATS)))

    def rows(self, began_ns: int) -> Rows:
        """Return the readings as rows of tables.ALLOCATOR."""
        return ALLOCATOR.of(self._readings)

    def _charge_driver_calls(self) -> None:
        """Charge the driver calls since the last time to the clock."""
        state = self.reserved_bytes, self.retries
        if state == self._driver_state:
            return
        self._driver_state, stats = state, self.stats()
        for call, count in _DRIVER_CALLS.items():
            for _ in range(stats[count] - self._call_counts[call]):
                self._clock.charge_driver_call(call)
            self._call_counts[call] = stats[count]

    def _log(self, size: int, key: int) -> None:
        self._clock.log.add_memory(self._clock.now_ns, size, key, self.allocated_bytes, self.reserved_bytes)
