"""Simulation of PyTorch's caching allocator: the memory it would reserve, without allocating any.

The rules are those of c10/cuda/CUDACachingAllocator.cpp with default settings. A request is rounded up to 512 bytes
and served from the smallest free block that is large enough, else from a new segment (`cudaMalloc`). Blocks are split,
and merged with free neighbours when they are freed. Segments are kept until the driver has no memory left.

Not simulated, because all of it is off by default: expandable segments, max_split_size_mb, rounding to powers of two,
garbage collection, private pools of CUDA graphs. A block used by other streams (record_stream) is free at once here;
on a GPU it is free when these streams are done with it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

DEFAULT_STREAM = 7  # its number in traces and in the op log
MIN_BLOCK_BYTES = 512  # kMinBlockSize: every block size is a multiple of it
SMALL_BYTES = 2**20  # kSmallSize: largest small request; a large block is split only if more than this remains
SMALL_SEGMENT_BYTES = 2 * 2**20  # kSmallBuffer
LARGE_SEGMENT_BYTES = 20 * 2**20  # kLargeBuffer
OWN_SEGMENT_BYTES = 10 * 2**20  # kMinLargeAlloc: from here on a request gets a segment of its own
SEGMENT_STEP_BYTES = 2 * 2**20  # kRoundLarge


class OutOfGpuMemory(Exception):  # noqa: N818 - internal; the virtual GPU raises torch.OutOfMemoryError instead
    """The GPU has no memory left for a request, even after the cache was released."""

    def __init__(
        self, *, requested_bytes: int, segment_bytes: int, free_bytes: int, allocated_bytes: int, reserved_bytes: int,
        capacity_bytes: int,
    ) -> None:  # fmt: skip
        super().__init__(f"{segment_bytes} bytes needed, {free_bytes} of {capacity_bytes} free")
        self.requested_bytes = requested_bytes  # requested by the program
        self.segment_bytes = segment_bytes  # requested from the driver: a whole segment, as in PyTorch's own message
        self.free_bytes = free_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        self.capacity_bytes = capacity_bytes


def block_bytes(requested_bytes: int) -> int:
    """Return the block size of a request."""
    return max(MIN_BLOCK_BYTES, -(-requested_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES)


def segment_bytes(rounded: int) -> int:
    """Return the size of the segment that is allocated for a request if no free block is large enough."""
    if rounded <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded < OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-rounded // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES


class _Count:
    """A statistic as PyTorch keeps it: current value, peak, and total of all increases."""

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
    """The statistics of one kind of pool, or of all pools."""

    __slots__ = ("allocated", "allocations", "requested", "reserved", "segments", "split", "splits")

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, _Count())

    allocations: _Count
    allocated: _Count  # bytes of blocks in use, with remainders that are too small to split off
    requested: _Count  # bytes, not rounded
    segments: _Count
    reserved: _Count  # bytes
    splits: _Count  # free blocks of segments that also have blocks in use
    split: _Count  # bytes of them


# Keys of torch.cuda.memory_stats. Without record_stream a block is active exactly as long as it is allocated.
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
    """The free blocks of one stream and one kind (small or large), by size, then address."""

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
        """Return the smallest free block that is large enough."""
        index = bisect_left(self.order, (rounded, -1))
        return self.blocks[self.order[index][1]] if index < len(self.order) else None


@dataclass(slots=True, eq=False)
class Block:
    """A contiguous part of a segment, in use or free."""

    address: int
    bytes: int
    pool: _Pool
    previous: Block | None = None  # neighbours in the segment
    next: Block | None = None
    requested_bytes: int = -1  # -1: it is free

    @property
    def is_free(self) -> bool:
        """Whether the block is free."""
        return self.requested_bytes < 0

    @property
    def is_split(self) -> bool:
        """Whether the block is only a part of its segment."""
        return self.previous is not None or self.next is not None


class CachingAllocator:
    """Allocates blocks of simulated memory by the rules of PyTorch's allocator.

    `non_torch_bytes` of the capacity is not available to it: CUDA context, other processes. If not `limited`, a request
    that does not fit is counted as refused and served all the same.
    """

    def __init__(self, capacity_bytes: int, non_torch_bytes: int = 0) -> None:
        self.capacity_bytes = capacity_bytes
        self.non_torch_bytes = non_torch_bytes
        self.enforce_limit = True
        self.retries = 0  # times the whole cache was released to serve a request
        self.oom_count = 0
        self._all, self._small, self._large = _Counts(), _Counts(), _Counts()
        self._pools: dict[tuple[int, bool], _Pool] = {}
        self._next_address = SEGMENT_STEP_BYTES

    @property
    def allocated_bytes(self) -> int:
        """Bytes of blocks in use, as torch.cuda.memory_allocated() returns."""
        return self._all.allocated.current

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all segments, as torch.cuda.memory_reserved() returns."""
        return self._all.reserved.current

    @property
    def max_reserved_bytes(self) -> int:
        """Peak of `reserved_bytes` since the start or the last reset."""
        return self._all.reserved.peak

    @property
    def free_bytes(self) -> int:
        """Bytes that cudaMalloc could still serve; negative if the limit was lifted."""
        return self.capacity_bytes - self.non_torch_bytes - self.reserved_bytes

    def allocate(self, requested_bytes: int, stream: int = DEFAULT_STREAM) -> Block:
        """Allocate a block of at least so many bytes. Raises Full if there is no memory; nothing is allocated then."""
        rounded = block_bytes(requested_bytes)
        pool = self._pool(stream, rounded <= SMALL_BYTES)
        block = pool.best(rounded) or self._allocate_segment(pool, rounded)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._allocate_segment(pool, rounded)
        if block is None:
            self.oom_count += 1
            if self.enforce_limit:
                raise self._full_error(requested_bytes, rounded)
            block = self._add_segment(pool, rounded)
        splits, split_bytes = (-1, -block.bytes) if block.is_split else (0, 0)
        pool.remove(block)
        rest = block.bytes - rounded
        # A large block is split only if the remainder is large, too.
        if rest >= MIN_BLOCK_BYTES if pool.small else rest > SMALL_BYTES:
            pool.add(_split(block, rounded))
            splits, split_bytes = splits + 1, split_bytes + rest
        self._count_splits(pool, splits, split_bytes)
        block.requested_bytes = requested_bytes
        self._count_block(block, 1)
        return block

    def free(self, block: Block) -> None:
        """Free a block; it stays cached for the next request."""
        self._count_block(block, -1)
        block.requested_bytes = -1
        splits = split_bytes = 0
        for other in (block.previous, block.next):
            if other is not None and other.is_free:
                block.pool.remove(other)
                splits, split_bytes = splits - 1, split_bytes - other.bytes
                _join(block, other)
        block.pool.add(block)
        if block.is_split:
            splits, split_bytes = splits + 1, split_bytes + block.bytes
        self._count_splits(block.pool, splits, split_bytes)

    def empty_cache(self) -> None:
        """Release every segment that has no block in use (`cudaFree`)."""
        for pool in self._pools.values():
            for block in [block for block in pool.blocks.values() if not block.is_split]:
                pool.remove(block)
                for counts in (self._all, pool.counts):
                    counts.segments.add(-1)
                    counts.reserved.add(-block.bytes)

    def reset_peak(self) -> None:
        """Reset all peaks, as torch.cuda.reset_peak_memory_stats() does."""
        for counts in (self._all, self._small, self._large):
            for name in _Counts.__slots__:
                count = getattr(counts, name)
                count.peak = count.current

    def stats(self) -> dict[str, int]:
        """Return the values of torch.cuda.memory_stats() that are simulated."""
        values: dict[str, int] = {}
        for pool, counts in (("all", self._all), ("small_pool", self._small), ("large_pool", self._large)):
            for name, attribute in _NAMES.items():
                count: _Count = getattr(counts, attribute)
                values[f"{name}.{pool}.current"] = count.current
                values[f"{name}.{pool}.peak"] = count.peak
                values[f"{name}.{pool}.allocated"] = count.total
                values[f"{name}.{pool}.freed"] = count.total - count.current
        segments = self._all.segments
        values["num_alloc_retries"] = self.retries
        values["num_ooms"] = self.oom_count
        values["num_device_alloc"] = segments.total
        values["num_device_free"] = segments.total - segments.current
        values["max_split_size"] = -1  # no limit, so no block is oversize
        for name in ("oversize_allocations", "oversize_segments"):
            values |= {f"{name}.{statistic}": 0 for statistic in ("current", "peak", "allocated", "freed")}
        return values

    def _pool(self, stream: int, small: bool) -> _Pool:
        pool = self._pools.get((stream, small))
        if pool is None:
            pool = self._pools[stream, small] = _Pool(small, self._small if small else self._large)
        return pool

    def _allocate_segment(self, pool: _Pool, rounded: int) -> Block | None:
        """Allocate a segment and return it as one free block; None if the driver has too little memory."""
        size = segment_bytes(rounded)
        if size > self.free_bytes:
            return None
        return self._add_segment(pool, rounded)

    def _add_segment(self, pool: _Pool, rounded: int) -> Block:
        """Add a segment without checking the limit and return it as one free block."""
        size = segment_bytes(rounded)
        block = Block(self._next_address, size, pool)
        self._next_address += size
        for counts in (self._all, pool.counts):
            counts.segments.add(1)
            counts.reserved.add(size)
        pool.add(block)
        return block

    def _count_splits(self, pool: _Pool, splits: int, split_bytes: int) -> None:
        for counts in (self._all, pool.counts):
            counts.splits.add(splits)
            counts.split.add(split_bytes)

    def _count_block(self, block: Block, sign: int) -> None:
        for counts in (self._all, block.pool.counts):
            counts.allocations.add(sign)
            counts.allocated.add(sign * block.bytes)
            counts.requested.add(sign * block.requested_bytes)

    def _full_error(self, requested_bytes: int, rounded: int) -> OutOfGpuMemory:
        return OutOfGpuMemory(
            requested_bytes=requested_bytes,
            segment_bytes=segment_bytes(rounded),
            free_bytes=max(0, self.free_bytes),
            allocated_bytes=self.allocated_bytes,
            reserved_bytes=self.reserved_bytes,
            capacity_bytes=self.capacity_bytes,
        )


def _split(block: Block, rounded: int) -> Block:
    """Cut a block to size and return the remainder as a block."""
    rest = Block(block.address + rounded, block.bytes - rounded, block.pool, block, block.next)
    if block.next is not None:
        block.next.previous = rest
    block.next, block.bytes = rest, rounded
    return rest


def _join(block: Block, other: Block) -> None:
    """Merge a free neighbour into a block."""
    if other is block.previous:
        block.address = other.address
        block.previous = other.previous
        if block.previous is not None:
            block.previous.next = block
    else:
        block.next = other.next
        if block.next is not None:
            block.next.previous = block
    block.bytes += other.bytes
