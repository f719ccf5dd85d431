"""Memory of a virtual GPU with a log: every piece at its time, and the calls to the driver that it took."""

from __future__ import annotations

from typing import Any

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.rows import Rows
from gpulab.tables import ALLOCATOR
from gpulab.virtual.clock import Clock
from gpulab.virtual.memory_fit.memory import Memory, allowances
from gpulab.virtual.op_log.ops import Phase

# What tables.ALLOCATOR tells, by the keys of torch.cuda.memory_stats().
_TOLD = (
    "allocated_bytes.all.current",
    "reserved_bytes.all.current",
    "inactive_split_bytes.all.current",
    "allocated_bytes.all.peak",
    "reserved_bytes.all.peak",
    "num_alloc_retries",
    "num_device_alloc",
    "num_ooms",
)
_CALLS = {"cudaFree": "num_device_free", "cudaMalloc": "num_device_alloc"}


class LoggedMemory(Memory):
    """Tells the clock's log what it gives out and takes back."""

    def __init__(self, spec: GpuSpec, clock: Clock) -> None:
        super().__init__(spec.usable_bytes, sum(each.bytes for each in allowances(spec)))
        self._clock = clock
        self._sizes: dict[int, int] = {}
        self._held = (0, 0)
        self._calls = dict.fromkeys(_CALLS, 0)
        self._readings: list[tuple[int, ...]] = []

    def allocate(self, key: int, bytes: int, phase: Phase, *more: Any) -> None:
        """As Memory.allocate; where the driver had to be asked, that takes its time."""
        try:
            super().allocate(key, bytes, phase, *more)
        finally:
            self._asked()
        self._sizes[key] = bytes
        self._note(bytes, key)

    def free(self, key: int) -> None:
        """As Memory.free."""
        super().free(key)
        self._note(-self._sizes.pop(key, 0), key)

    def empty_cache(self) -> None:
        """As Memory.empty_cache: each segment that goes back is a cudaFree, which waits for the GPU."""
        super().empty_cache()
        self._asked()

    def read(self, at_ns: int) -> None:
        """Note what torch.cuda.memory_stats() would tell now; the moment is the virtual clock's, whatever the time."""
        stats = self.stats()
        self._readings.append((self._clock.now_ns, 0, *(stats[key] for key in _TOLD)))

    def rows(self, began_ns: int) -> Rows:
        """What was noted, as rows of tables.ALLOCATOR."""
        return ALLOCATOR.of(self._readings)

    def _asked(self) -> None:
        """Tell the clock of the calls to the driver since the last time."""
        held = self.reserved_bytes, self.retries
        if held == self._held:
            return
        self._held, stats = held, self.stats()
        for call, count in _CALLS.items():
            for _ in range(stats[count] - self._calls[call]):
                self._clock.asked_for_memory(call)
            self._calls[call] = stats[count]

    def _note(self, size: int, key: int) -> None:
        self._clock.log.memory(self._clock.now_ns, size, key, self.allocated_bytes, self.reserved_bytes)
