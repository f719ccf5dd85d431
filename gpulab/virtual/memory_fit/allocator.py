"""What PyTorch's caching allocator would hold of a GPU's memory: a simulation of its rules, without any memory.

The rules are those of c10/cuda/CUDACachingAllocator.cpp as it comes: a request is rounded up to 512 bytes and served
from the smallest free block that has room, else from a new segment asked of the driver; blocks are split and, when
free again, joined with free neighbours; segments are kept until the driver has no more to give.

Not simulated, as all of it is off by default: expandable segments, max_split_size_mb, rounding to powers of two,
garbage collection, the private pools of CUDA graphs. A block that other streams use (record_stream) is free at once
here; on a GPU it is free when these streams are done with it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

DEFAULT_STREAM = 7  # as on the tape and in traces
LEAST_BYTES = 512  # kMinBlockSize: every size is a multiple of it
SMALL_BYTES = 2**20  # kSmallSize: up to here a request is small, and beyond it so much must remain to split a block
SMALL_SEGMENT_BYTES = 2 * 2**20  # kSmallBuffer
LARGE_SEGMENT_BYTES = 20 * 2**20  # kLargeBuffer
OWN_SEGMENT_BYTES = 10 * 2**20  # kMinLargeAlloc: from here on a request gets a segment of its own size
SEGMENT_STEP_BYTES = 2 * 2**20  # kRoundLarge


class Full(Exception):  # noqa: N818 - it is what the GPU is, and becomes PyTorch's own error at the door
    """The GPU has no memory left for a request, also after all that was cached was given back."""

    def __init__(
        self, *, asked_bytes: int, needed_bytes: int, free_bytes: int, allocated_bytes: int, reserved_bytes: int,
        capacity_bytes: int,
    ) -> None:  # fmt: skip
        super().__init__(f"{needed_bytes} bytes needed, {free_bytes} of {capacity_bytes} free")
        self.asked_bytes = asked_bytes  # by the program
        self.needed_bytes = needed_bytes  # of the driver: a whole segment, as PyTorch's own message counts
        self.free_bytes = free_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        self.capacity_bytes = capacity_bytes


def rounded_bytes(asked_bytes: int) -> int:
    """What a request takes up."""
    return max(LEAST_BYTES, -(-asked_bytes // LEAST_BYTES) * LEAST_BYTES)


def segment_bytes(rounded: int) -> int:
    """What is asked of the driver for a request that no free block has room for."""
    if rounded <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded < OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-rounded // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES


class _Count:
    """Something counted as PyTorch counts: now, at most, and all that ever came."""

    __slots__ = ("current", "peak", "total")

    def __init__(self) -> None:
        self.current = self.peak = self.total = 0

    def add(self, amount: int) -> None:
        self.current += amount
        if amount > 0:
            self.total += amount
            if self.current > self.peak:
                self.peak = self.current


class _Counts:
    """What is counted of one kind of pool, or of all."""

    __slots__ = ("allocated", "allocations", "requested", "reserved", "segments", "split", "splits")

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, _Count())

    allocations: _Count
    allocated: _Count  # bytes, of blocks given out: with what was too little to split off
    requested: _Count  # bytes, as asked for
    segments: _Count
    reserved: _Count  # bytes
    splits: _Count  # free blocks beside one in use
    split: _Count  # bytes of these


# As torch.cuda.memory_stats names them. Without record_stream a block is active just as long as it is given out.
_NAMES = {
    "allocation": "allocations",
    "allocated_bytes": "allocated",
    "active": "allocations",
    "active_bytes": "allocated",
    "requested_bytes": "requested",
    "segment": "segments",
    "reserved_bytes": "reserved",
    "inactive_split": "splits",
    "inactive_split_bytes": "split",
}


class _Pool:
    """The free blocks of one stream and one kind, by size, then address."""

    __slots__ = ("blocks", "counts", "order", "small")

    def __init__(self, small: bool, counts: _Counts) -> None:
        self.small = small
        self.counts = counts
        self.order: list[tuple[int, int]] = []  # bytes, address
        self.blocks: dict[int, Block] = {}  # by address

    def add(self, block: Block) -> None:
        insort(self.order, (block.bytes, block.address))
        self.blocks[block.address] = block

    def remove(self, block: Block) -> None:
        del self.order[bisect_left(self.order, (block.bytes, block.address))]
        del self.blocks[block.address]

    def best(self, rounded: int) -> Block | None:
        """The smallest free block with room."""
        place = bisect_left(self.order, (rounded, -1))
        return self.blocks[self.order[place][1]] if place < len(self.order) else None


@dataclass(slots=True, eq=False)
class Block:
    """A stretch of a segment, given out or free."""

    address: int
    bytes: int
    pool: _Pool
    before: Block | None = None  # its neighbours in the segment
    after: Block | None = None
    asked_bytes: int = -1  # -1: it is free

    @property
    def free(self) -> bool:
        """Not given out."""
        return self.asked_bytes < 0

    @property
    def split(self) -> bool:
        """Not all of its segment."""
        return self.before is not None or self.after is not None


class CachingAllocator:
    """Gives out blocks of memory that is not there, as PyTorch's allocator would.

    `outside_bytes` of the capacity is never to be had: CUDA's own needs, other processes. While it is not `limited`,
    what has no room is counted as refused, and given out all the same.
    """

    def __init__(self, capacity_bytes: int, outside_bytes: int = 0) -> None:
        self.capacity_bytes = capacity_bytes
        self.outside_bytes = outside_bytes
        self.limited = True
        self.retries = 0  # how often all of the cache had to be given back
        self.refused = 0
        self._all, self._small, self._large = _Counts(), _Counts(), _Counts()
        self._pools: dict[tuple[int, bool], _Pool] = {}
        self._next_address = SEGMENT_STEP_BYTES

    @property
    def allocated_bytes(self) -> int:
        """Of the blocks given out, as torch.cuda.memory_allocated() tells."""
        return self._all.allocated.current

    @property
    def reserved_bytes(self) -> int:
        """Of all segments, as torch.cuda.memory_reserved() tells."""
        return self._all.reserved.current

    @property
    def max_reserved_bytes(self) -> int:
        """The most since the start, or since the last reset."""
        return self._all.reserved.peak

    @property
    def free_bytes(self) -> int:
        """What the driver could still give; below zero where the limit was lifted."""
        return self.capacity_bytes - self.outside_bytes - self.reserved_bytes

    def allocate(self, asked_bytes: int, stream: int = DEFAULT_STREAM) -> Block:
        """A block with room for so many bytes. Raises Full where there is none, and then nothing was given out."""
        rounded = rounded_bytes(asked_bytes)
        pool = self._pool(stream, rounded <= SMALL_BYTES)
        block = pool.best(rounded) or self._segment(pool, rounded)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._segment(pool, rounded)
        if block is None:
            self.refused += 1
            if self.limited:
                raise self._full(asked_bytes, rounded)
            block = self._beyond(pool, rounded)
        splits, held = (-1, -block.bytes) if block.split else (0, 0)
        pool.remove(block)
        rest = block.bytes - rounded
        # The rest of a large block is worth a block of its own only if it is large itself.
        if rest >= LEAST_BYTES if pool.small else rest > SMALL_BYTES:
            pool.add(_split(block, rounded))
            splits, held = splits + 1, held + rest
        self._idle(pool, splits, held)
        block.asked_bytes = asked_bytes
        self._given(block, 1)
        return block

    def free(self, block: Block) -> None:
        """Take a block back; it is kept for the next request."""
        self._given(block, -1)
        block.asked_bytes = -1
        splits = held = 0
        for other in (block.before, block.after):
            if other is not None and other.free:
                block.pool.remove(other)
                splits, held = splits - 1, held - other.bytes
                _join(block, other)
        block.pool.add(block)
        if block.split:
            splits, held = splits + 1, held + block.bytes
        self._idle(block.pool, splits, held)

    def empty_cache(self) -> None:
        """Give every segment without a block in use back to the driver."""
        for pool in self._pools.values():
            for block in [block for block in pool.blocks.values() if not block.split]:
                pool.remove(block)
                for counts in (self._all, pool.counts):
                    counts.segments.add(-1)
                    counts.reserved.add(-block.bytes)

    def reset_peak(self) -> None:
        """Forget every maximum, as torch.cuda.reset_peak_memory_stats() does."""
        for counts in (self._all, self._small, self._large):
            for name in _Counts.__slots__:
                count = getattr(counts, name)
                count.peak = count.current

    def stats(self) -> dict[str, int]:
        """The figures of torch.cuda.memory_stats() that can be told."""
        told: dict[str, int] = {}
        for pool, counts in (("all", self._all), ("small_pool", self._small), ("large_pool", self._large)):
            for name, kept in _NAMES.items():
                count: _Count = getattr(counts, kept)
                told[f"{name}.{pool}.current"] = count.current
                told[f"{name}.{pool}.peak"] = count.peak
                told[f"{name}.{pool}.allocated"] = count.total
                told[f"{name}.{pool}.freed"] = count.total - count.current
        segments = self._all.segments
        told["num_alloc_retries"] = self.retries
        told["num_ooms"] = self.refused
        told["num_device_alloc"] = segments.total
        told["num_device_free"] = segments.total - segments.current
        told["max_split_size"] = -1  # no limit, so that no block is ever larger
        for name in ("oversize_allocations", "oversize_segments"):
            told |= {f"{name}.{of}": 0 for of in ("current", "peak", "allocated", "freed")}
        return told

    def _pool(self, stream: int, small: bool) -> _Pool:
        pool = self._pools.get((stream, small))
        if pool is None:
            pool = self._pools[stream, small] = _Pool(small, self._small if small else self._large)
        return pool

    def _segment(self, pool: _Pool, rounded: int) -> Block | None:
        """A new segment as one free block; None where the driver has no room for it."""
        size = segment_bytes(rounded)
        if size > self.free_bytes:
            return None
        return self._beyond(pool, rounded)

    def _beyond(self, pool: _Pool, rounded: int) -> Block:
        """A new segment, whether there is room or not."""
        size = segment_bytes(rounded)
        block = Block(self._next_address, size, pool)
        self._next_address += size
        for counts in (self._all, pool.counts):
            counts.segments.add(1)
            counts.reserved.add(size)
        pool.add(block)
        return block

    def _idle(self, pool: _Pool, splits: int, held: int) -> None:
        for counts in (self._all, pool.counts):
            counts.splits.add(splits)
            counts.split.add(held)

    def _given(self, block: Block, sign: int) -> None:
        for counts in (self._all, block.pool.counts):
            counts.allocations.add(sign)
            counts.allocated.add(sign * block.bytes)
            counts.requested.add(sign * block.asked_bytes)

    def _full(self, asked_bytes: int, rounded: int) -> Full:
        return Full(
            asked_bytes=asked_bytes,
            needed_bytes=segment_bytes(rounded),
            free_bytes=max(0, self.free_bytes),
            allocated_bytes=self.allocated_bytes,
            reserved_bytes=self.reserved_bytes,
            capacity_bytes=self.capacity_bytes,
        )


def _split(block: Block, rounded: int) -> Block:
    """Cut a block to size; gives the rest of it."""
    rest = Block(block.address + rounded, block.bytes - rounded, block.pool, block, block.after)
    if block.after is not None:
        block.after.before = rest
    block.after, block.bytes = rest, rounded
    return rest


def _join(block: Block, other: Block) -> None:
    """Make a free neighbour part of a block."""
    if other is block.before:
        block.address = other.address
        block.before = other.before
        if block.before is not None:
            block.before.after = block
    else:
        block.after = other.after
        if block.after is not None:
            block.after.before = block
    block.bytes += other.bytes
