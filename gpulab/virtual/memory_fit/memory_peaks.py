"""The memory of a virtual GPU: what is in use, for which role, and the peak of each phase.

Memory in use is exact, with every allocation rounded up to 512 bytes; the memory that PyTorch would reserve is
simulated by gpulab.virtual.memory_fit.allocator. The role of an allocation is often known only later: which tensors
are gradients, which activations are kept for backward. So a peak remembers its allocations, and their roles are read
when the peak is queried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.memory_fit.allocation_trace import AllocationTrace
from gpulab.virtual.memory_fit.allocator import DEFAULT_STREAM, Block, CachingAllocator, OutOfGpuMemory, block_bytes
from gpulab.virtual.op_log.ops import Phase, Role
from gpulab.wording import size

__all__ = ["FixedMemory", "MemoryUse", "OutOfGpuMemory", "SimulatedMemory", "non_torch_memory"]

_WORKSPACE_BYTES = {True: 32 * 2**20, False: 8_519_680}  # per cuBLAS handle: Hopper and later, older GPUs
_HANDLES = 2  # one per thread: forward and backward run in different threads
_WORKSPACE_SOURCE = "two cuBLAS handles x {} (forward and backward threads), PyTorch's default CUBLAS_WORKSPACE_CONFIG"
_CONTEXT_SOURCE = "an allowance, not measured: reports for CUDA 11.7 and later say 300 to 600 MiB, by GPU and driver"


@dataclass(frozen=True, slots=True)
class FixedMemory:
    """Memory needed in addition to tensors: a fixed value with a source, not simulated."""

    name: str
    bytes: int
    source: str


def non_torch_memory(spec: GpuSpec) -> tuple[FixedMemory, ...]:
    """Return the memory that a training process needs in addition to its tensors.

    cuDNN workspaces are not included: their size is unknown and can be some hundred MiB for convolutions.
    """
    workspace = _WORKSPACE_BYTES[spec.generation >= 90]
    return (
        FixedMemory("CUDA context", spec.context_bytes, _CONTEXT_SOURCE),
        FixedMemory("cuBLAS workspaces", _HANDLES * workspace, _WORKSPACE_SOURCE.format(size(workspace))),
    )


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory in use at one time, with the phase; `by_role` sums to `bytes`."""

    bytes: int
    phase: Phase
    by_role: Mapping[Role, int]


@dataclass(slots=True, eq=False)
class _Allocation:
    """One allocation."""

    bytes: int  # rounded up
    number: int  # in order of allocation
    phase: Phase
    phase_index: int  # number of phase changes before it
    block: Block | None  # None for an allocation of 0 bytes
    role: Role | None = None
    outlives_phase: bool = True  # it is in use, or was when its phase ended


@dataclass(slots=True, eq=False)
class _Peak:
    """The peak of one phase: all allocations up to `number`, without those freed before the peak."""

    bytes: int
    number: int
    freed: list[_Allocation]  # in use at the peak, freed since


class SimulatedMemory:
    """Allocates and frees memory by keys that the caller chooses.

    `non_torch_bytes` of the capacity is not available to PyTorch: the CUDA context and all else that is not simulated.
    """

    def __init__(self, capacity_bytes: int, non_torch_bytes: int = 0) -> None:
        self._allocator = CachingAllocator(capacity_bytes, non_torch_bytes)
        self._allocations: dict[int, _Allocation] = {}
        self._peaks: dict[Phase, _Peak] = {}
        self._phase = Phase.SETUP
        self._phase_index = 0
        self._number = 0
        self._allocated_bytes = 0
        self.allocation_trace: AllocationTrace | None = None  # records all allocations, if set

    @property
    def capacity_bytes(self) -> int:
        """GPU memory that this process can use."""
        return self._allocator.capacity_bytes

    @property
    def non_torch_bytes(self) -> int:
        """Part of the capacity that PyTorch cannot use."""
        return self._allocator.non_torch_bytes

    @property
    def free_bytes(self) -> int:
        """Bytes that cudaMalloc could still serve, as torch.cuda.mem_get_info() returns."""
        return max(0, self._allocator.free_bytes)

    @property
    def allocated_bytes(self) -> int:
        """Bytes in use, each allocation rounded up to 512 bytes.

        torch.cuda.memory_allocated() returns a little more, `stats()["allocated_bytes.all.current"]`: it includes
        remainders that are too small to split off a block.
        """
        return self._allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes that PyTorch's allocator would reserve, in use or cached."""
        return self._allocator.reserved_bytes

    @property
    def max_allocated_bytes(self) -> int:
        """Peak of `allocated_bytes` since the start or the last reset."""
        return self.peak().bytes

    @property
    def max_reserved_bytes(self) -> int:
        """Peak of `reserved_bytes` since the start or the last reset."""
        return self._allocator.max_reserved_bytes

    @property
    def retries(self) -> int:
        """Times the whole cache was released because the GPU was full, which is slow on a real GPU."""
        return self._allocator.retries

    def enter_phase(self, phase: Phase) -> None:
        """Begin a phase; has no effect if it is the current one."""
        if phase is not self._phase:
            self._phase = phase
            self._phase_index += 1
            self._update_peak()

    def allocate(self, key: int, bytes: int, phase: Phase, stream: int = DEFAULT_STREAM) -> None:
        """Allocate memory. Raises Full if there is none left; nothing is allocated then.

        Raises ValueError if the key is in use, which is a mistake of the caller.
        """
        if key in self._allocations:
            raise ValueError(f"key {key} already has memory")
        self.enter_phase(phase)
        block = self._allocator.allocate(bytes, stream) if bytes else None
        size = block_bytes(bytes) if bytes else 0
        self._number += 1
        self._allocations[key] = _Allocation(size, self._number, phase, self._phase_index, block)
        if self.allocation_trace is not None:
            self.allocation_trace.record_allocation(self._number, bytes, stream)
        self._allocated_bytes += size
        self._update_peak()

    def free(self, key: int) -> None:
        """Free memory. Raises KeyError if the key has none."""
        allocation = self._allocations.pop(key)
        allocation.outlives_phase = allocation.phase_index != self._phase_index
        self._allocated_bytes -= allocation.bytes
        for peak in self._peaks.values():
            if allocation.number <= peak.number:
                peak.freed.append(allocation)
        if allocation.block is not None:
            self._allocator.free(allocation.block)
            if self.allocation_trace is not None:
                self.allocation_trace.record_free(allocation.number)

    def set_role(self, key: int, role: Role) -> None:
        """Set the role of an allocation; it applies to earlier peaks, too. Raises KeyError if the key has no memory."""
        self._allocations[key].role = role

    def address(self, key: int) -> int:
        """Return the simulated address of an allocation; -1 if it has 0 bytes."""
        block = self._allocations[key].block
        return -1 if block is None else block.address

    def in_use(self) -> MemoryUse:
        """Return the memory in use now."""
        return _use(self._allocated_bytes, self._phase, self._allocations.values())

    def peak(self, phase: Phase | None = None) -> MemoryUse:
        """Return the memory in use at the peak, of one phase or of all, since the start or the last reset.

        A phase that the program did not enter has a peak of 0 bytes; `phases` lists the others.
        """
        phases = (phase,) if phase is not None else self.phases
        peaks = [(each, self._peaks[each]) for each in phases if each in self._peaks]
        if not peaks:
            return MemoryUse(0, phase or self._phase, {})
        peak_phase, peak = max(peaks, key=lambda item: (item[1].bytes, -item[1].number))
        in_use = (allocation for allocation in self._allocations.values() if allocation.number <= peak.number)
        return _use(peak.bytes, peak_phase, [*in_use, *peak.freed])

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases with memory in use that the program entered since the start or the last reset."""
        return tuple(each for each in Phase if each in self._peaks)

    def reset_peak(self) -> None:
        """Reset all peaks to the memory in use now."""
        self._allocator.reset_peak()
        self._peaks.clear()
        self._update_peak()

    def empty_cache(self) -> None:
        """Release cached memory to the driver, as torch.cuda.empty_cache() does."""
        self._allocator.empty_cache()
        if self.allocation_trace is not None:
            self.allocation_trace.record_empty_cache()

    @property
    def oom_count(self) -> int:
        """Number of allocations that did not fit."""
        return self._allocator.oom_count

    @property
    def enforce_limit(self) -> bool:
        """Whether allocations that do not fit raise Full; if False, they are counted as refused and served."""
        return self._allocator.enforce_limit

    @enforce_limit.setter
    def enforce_limit(self, enforce: bool) -> None:
        """Set the limit for later allocations."""
        self._allocator.enforce_limit = enforce

    def stats(self) -> dict[str, int]:
        """Return the values of torch.cuda.memory_stats() that are simulated."""
        return self._allocator.stats()

    def _update_peak(self) -> None:
        """Record a new peak of the current phase, if there is one."""
        peak = self._peaks.get(self._phase)
        if peak is None:
            if self._allocated_bytes:
                self._peaks[self._phase] = _Peak(self._allocated_bytes, self._number, [])
        elif self._allocated_bytes > peak.bytes:
            peak.bytes, peak.number = self._allocated_bytes, self._number
            peak.freed = []


def _use(total_bytes: int, phase: Phase, allocations: Iterable[_Allocation]) -> MemoryUse:
    by_role = dict.fromkeys(Role, 0)
    for allocation in allocations:
        by_role[_role(allocation)] += allocation.bytes
    return MemoryUse(total_bytes, phase, {role: role_bytes for role, role_bytes in by_role.items() if role_bytes})


def _role(allocation: _Allocation) -> Role:
    if allocation.role is not None:
        return allocation.role
    # Forward allocations that outlive forward are kept for backward; the others are temporaries.
    return Role.ACTIVATION if allocation.phase is Phase.FORWARD and allocation.outlives_phase else Role.TEMPORARY
