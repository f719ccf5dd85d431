"""The memory of a GPU that is not there: what is in use, for what, and what was when most was.

What is in use is counted to the byte, every piece rounded up to 512 bytes; what PyTorch would hold of the GPU is
simulated by gpulab.virtual.memory_fit.allocator. What a piece is for is often learned later: which tensors are
gradients, what of the forward pass is kept for backward. So whoever was there at a maximum is remembered, and asked
when told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.memory_fit.allocator import DEFAULT_STREAM, Block, CachingAllocator, Full, rounded_bytes
from gpulab.virtual.memory_fit.request_script import Script
from gpulab.virtual.op_log.ops import Phase, Role

__all__ = ["Allowance", "Full", "Memory", "Use", "allowances"]

_WORKSPACE_BYTES = {True: 32 * 2**20, False: 8_519_680}  # of one cuBLAS handle: Hopper and later, before it
_HANDLES = 2  # the thread that runs forward and the one that runs backward have one each
_WORKSPACE_SOURCE = "PyTorch's default, CUBLAS_WORKSPACE_CONFIG: 32 MiB from Hopper on, else 8.1 MiB"
_CONTEXT_SOURCE = "an allowance, not measured: reports for CUDA 11.7 and later say 300 to 600 MiB, by GPU and driver"


@dataclass(frozen=True, slots=True)
class Allowance:
    """Memory that is needed beside tensors, as a stated figure: it is not simulated."""

    what: str
    bytes: int
    source: str


def allowances(spec: GpuSpec) -> tuple[Allowance, ...]:
    """What a training process takes of a GPU beside its tensors.

    cuDNN's workspaces are not among them: they are not known, and can be some hundred MiB for convolutions.
    """
    workspaces = _HANDLES * _WORKSPACE_BYTES[spec.generation >= 90]
    return (
        Allowance("CUDA context", spec.context_bytes, _CONTEXT_SOURCE),
        Allowance("cuBLAS workspaces", workspaces, _WORKSPACE_SOURCE),
    )


@dataclass(frozen=True, slots=True)
class Use:
    """How much was in use at a moment, in which phase, and for what; the roles sum to all of it."""

    bytes: int
    phase: Phase
    by_role: Mapping[Role, int]


@dataclass(slots=True, eq=False)
class _Piece:
    """One piece of memory in use."""

    bytes: int  # rounded up
    number: int  # counted from the first piece
    phase: Phase
    stretch: int  # in which stretch of that phase it came
    block: Block | None  # None: of no bytes
    role: Role | None = None
    kept: bool = True  # it is there yet, or was when that stretch ended


@dataclass(slots=True, eq=False)
class _Peak:
    """The most in use in one phase: all pieces up to a number, but for those gone by then."""

    bytes: int
    number: int
    gone: list[_Piece]  # were there then, and are not any more


class Memory:
    """Memory given out and taken back by key; keys are the caller's.

    `outside_bytes` of the capacity is not PyTorch's to have: the CUDA context, and what else is not simulated.
    """

    def __init__(self, capacity_bytes: int, outside_bytes: int = 0) -> None:
        self._allocator = CachingAllocator(capacity_bytes, outside_bytes)
        self._pieces: dict[int, _Piece] = {}
        self._peaks: dict[Phase, _Peak] = {}
        self._phase = Phase.SETUP
        self._stretch = 0
        self._number = 0
        self._allocated_bytes = 0
        self.script: Script | None = None  # where all that is asked for is to be noted

    @property
    def capacity_bytes(self) -> int:
        """Of the GPU, for this process."""
        return self._allocator.capacity_bytes

    @property
    def outside_bytes(self) -> int:
        """Of the capacity, what PyTorch cannot have."""
        return self._allocator.outside_bytes

    @property
    def free_bytes(self) -> int:
        """What the driver would still give, as torch.cuda.mem_get_info() tells."""
        return max(0, self._allocator.free_bytes)

    @property
    def allocated_bytes(self) -> int:
        """In use, each piece rounded up to 512 bytes.

        torch.cuda.memory_allocated() tells a little more, `stats()["allocated_bytes.all.current"]`: with it counts
        what was too little to split off a block.
        """
        return self._allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        """What PyTorch's allocator would hold, in use or not."""
        return self._allocator.reserved_bytes

    @property
    def max_allocated_bytes(self) -> int:
        """The most in use since the start, or since the last reset."""
        return self.peak().bytes

    @property
    def max_reserved_bytes(self) -> int:
        """The most that would be held since the start, or since the last reset."""
        return self._allocator.max_reserved_bytes

    @property
    def retries(self) -> int:
        """How often the GPU was so full that the whole cache had to be given back, which takes long on a real one."""
        return self._allocator.retries

    def phase(self, phase: Phase) -> None:
        """A phase begins; the same phase again goes on."""
        if phase is not self._phase:
            self._phase = phase
            self._stretch += 1
            self._rise()

    def allocate(self, key: int, bytes: int, phase: Phase, stream: int = DEFAULT_STREAM) -> None:
        """Give out memory. Raises Full where there is none left; then nothing is held under the key.

        Raises ValueError for a key that holds memory already: that is a mistake of the caller.
        """
        if key in self._pieces:
            raise ValueError(f"key {key} holds memory already")
        self.phase(phase)
        block = self._allocator.allocate(bytes, stream) if bytes else None
        size = rounded_bytes(bytes) if bytes else 0
        self._number += 1
        self._pieces[key] = _Piece(size, self._number, phase, self._stretch, block)
        if self.script is not None:
            self.script.asked(self._number, bytes, stream)
        self._allocated_bytes += size
        self._rise()

    def free(self, key: int) -> None:
        """Take memory back. Raises KeyError for a key that holds none."""
        piece = self._pieces.pop(key)
        piece.kept = piece.stretch != self._stretch
        self._allocated_bytes -= piece.bytes
        for peak in self._peaks.values():
            if piece.number <= peak.number:
                peak.gone.append(piece)
        if piece.block is not None:
            self._allocator.free(piece.block)
            if self.script is not None:
                self.script.given_back(piece.number)

    def role(self, key: int, role: Role) -> None:
        """What the memory under a key is for; it counts for the time before it was known as well.

        Raises KeyError for a key that holds none.
        """
        self._pieces[key].role = role

    def address(self, key: int) -> int:
        """Where the memory under a key would lie; -1 for a piece of no bytes."""
        block = self._pieces[key].block
        return -1 if block is None else block.address

    def use(self) -> Use:
        """What is in use now."""
        return _told(self._allocated_bytes, self._phase, self._pieces.values())

    def peak(self, phase: Phase | None = None) -> Use:
        """What was in use when most was, in one phase or in all, since the start or the last reset.

        A phase in which the program has not been had nothing in use; `phases` tells which those are not.
        """
        phases = (phase,) if phase is not None else self.phases
        seen = [(each, self._peaks[each]) for each in phases if each in self._peaks]
        if not seen:
            return Use(0, phase or self._phase, {})
        where, most = max(seen, key=lambda each: (each[1].bytes, -each[1].number))
        there = (piece for piece in self._pieces.values() if piece.number <= most.number)
        return _told(most.bytes, where, [*there, *most.gone])

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases with memory in use, in which the program was since the start or the last reset."""
        return tuple(each for each in Phase if each in self._peaks)

    def reset_peak(self) -> None:
        """Forget every maximum; what is in use now is the least of the next."""
        self._allocator.reset_peak()
        self._peaks.clear()
        self._rise()

    def empty_cache(self) -> None:
        """Give back to the driver what is held and not in use, as torch.cuda.empty_cache() does."""
        self._allocator.empty_cache()
        if self.script is not None:
            self.script.emptied()

    @property
    def refused(self) -> int:
        """How often there was no memory left for a piece."""
        return self._allocator.refused

    @property
    def limited(self) -> bool:
        """False: what has no room is counted as refused and given out all the same, to learn how much is needed."""
        return self._allocator.limited

    @limited.setter
    def limited(self, limited: bool) -> None:
        """From now on."""
        self._allocator.limited = limited

    def stats(self) -> dict[str, int]:
        """The figures of torch.cuda.memory_stats() that can be told."""
        return self._allocator.stats()

    def _rise(self) -> None:
        """Remember this moment, if it is the highest of its phase."""
        peak = self._peaks.get(self._phase)
        if peak is None:
            if self._allocated_bytes:
                self._peaks[self._phase] = _Peak(self._allocated_bytes, self._number, [])
        elif self._allocated_bytes > peak.bytes:
            peak.bytes, peak.number = self._allocated_bytes, self._number
            peak.gone = []


def _told(total: int, phase: Phase, pieces: Iterable[_Piece]) -> Use:
    by_role = dict.fromkeys(Role, 0)
    for piece in pieces:
        by_role[_role(piece)] += piece.bytes
    return Use(total, phase, {role: held for role, held in by_role.items() if held})


def _role(piece: _Piece) -> Role:
    if piece.role is not None:
        return piece.role
    # What came in forward and went before its end was in between; what stayed is for backward.
    return Role.ACTIVATION if piece.phase is Phase.FORWARD and piece.kept else Role.TEMPORARY
