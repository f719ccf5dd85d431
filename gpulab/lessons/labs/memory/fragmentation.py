"""Memory reserved by two allocators for the same requests: with fixed segments, and with expandable segments."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpulab.lessons.labs import tables
from gpulab.run import Run
from gpulab.views.sheet.view import View
from gpulab.virtual.memory_fit.allocator import Block, CachingAllocator, OutOfGpuMemory, block_bytes
from gpulab.wording import size

PAGE_BYTES = 2 * 2**20  # what an expandable segment maps at a time
SMALL_BYTES = 2**20  # requests up to this size have their own segment

Request = tuple[int, int]  # block number, and bytes; -1 frees the block


class AllocatorModel(Protocol):
    """An allocator: serves requests, and reports its reserved memory."""

    @property
    def reserved_bytes(self) -> int:
        """Memory reserved from the driver, in bytes."""

    @property
    def largest_free_bytes(self) -> int:
        """The largest request that could be served."""

    def allocate(self, number: int, size: int) -> None:
        """Allocate memory. Raises Full if there is not enough."""

    def free(self, number: int) -> None:
        """Free a block."""


class FixedSegments:
    """PyTorch's caching allocator with default settings: segments come from cudaMalloc and keep their size."""

    def __init__(self, capacity_bytes: int) -> None:
        self._allocator = CachingAllocator(capacity_bytes)
        self._blocks: dict[int, Block] = {}

    @property
    def reserved_bytes(self) -> int:
        """Memory reserved from the driver, in bytes."""
        return self._allocator.reserved_bytes

    @property
    def largest_free_bytes(self) -> int:
        """The largest request that could be served: a free block in a used segment, or all memory of the driver.

        Empty segments are freed first, as PyTorch does when memory runs short.
        """
        neighbours = (each for block in self._blocks.values() for each in (block.previous, block.next))
        holes = [each.bytes for each in neighbours if each is not None and each.is_free]
        self._allocator.empty_cache()
        return max([*holes, self._allocator.free_bytes])

    def allocate(self, number: int, size: int) -> None:
        """Allocate memory. Raises Full if no free block is large enough."""
        self._blocks[number] = self._allocator.allocate(size)

    def free(self, number: int) -> None:
        """Free a block."""
        self._allocator.free(self._blocks.pop(number))


class ExpandableSegment:
    """expandable_segments:True: addresses for the whole GPU, with memory mapped to them in pages on demand.

    A request goes into a hole if one is large enough; else the segment grows at its end. If the GPU is full, the pages
    of holes are unmapped and mapped at the end, so all free pages are usable. Small requests have a segment of their
    own; both share the GPU.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._segments = {True: _Segment(), False: _Segment()}  # small, large
        self._is_small: dict[int, bool] = {}

    @property
    def reserved_bytes(self) -> int:
        """Memory reserved from the driver, in bytes."""
        return sum(each.mapped_bytes for each in self._segments.values())

    @property
    def largest_free_bytes(self) -> int:
        """The largest request that could be served: all unused pages together."""
        used_bytes = sum(len(each.needed_pages) for each in self._segments.values()) * PAGE_BYTES
        return self.capacity_bytes - used_bytes

    def allocate(self, number: int, size: int) -> None:
        """Allocate memory. Raises Full if all free memory together is not enough."""
        rounded_size = block_bytes(size)
        small = rounded_size <= SMALL_BYTES
        segment = self._segments[small]
        start = segment.address_for(rounded_size)
        while self.reserved_bytes + segment.pages_needed(start, rounded_size) > self.capacity_bytes:
            if not any(each.unmap_holes() for each in self._segments.values()):
                raise OutOfGpuMemory(
                    requested_bytes=size,
                    segment_bytes=segment.pages_needed(start, rounded_size),
                    free_bytes=self.capacity_bytes - self.reserved_bytes,
                    allocated_bytes=sum(each.used_bytes for each in self._segments.values()),
                    reserved_bytes=self.reserved_bytes,
                    capacity_bytes=self.capacity_bytes,
                )
            start = segment.address_for(rounded_size)
        segment.allocate(number, start, rounded_size)
        self._is_small[number] = small

    def free(self, number: int) -> None:
        """Free a block."""
        self._segments[self._is_small.pop(number)].release(number)


class _Segment:
    """One expandable segment: its allocations by address, and its mapped pages."""

    def __init__(self) -> None:
        self.pages: set[int] = set()
        self.used: list[tuple[int, int, int]] = []  # start, end, number; by address
        self.by_number: dict[int, tuple[int, int, int]] = {}

    @property
    def mapped_bytes(self) -> int:
        return len(self.pages) * PAGE_BYTES

    @property
    def used_bytes(self) -> int:
        return sum(end - start for start, end, _ in self.used)

    def address_for(self, rounded_size: int) -> int:
        """Return the start of the smallest mapped hole that is large enough; else the end of the last allocation."""
        end, holes = 0, []
        for start, stop, _ in self.used:
            if start - end >= rounded_size and self._mapped(end, end + rounded_size):
                holes.append((start - end, end))
            end = stop
        return min(holes)[1] if holes else end

    def pages_needed(self, start: int, rounded_size: int) -> int:
        """Return the bytes of the pages that are not mapped yet."""
        return sum(PAGE_BYTES for page in _pages(start, start + rounded_size) if page not in self.pages)

    def allocate(self, number: int, start: int, rounded_size: int) -> None:
        self.pages |= set(_pages(start, start + rounded_size))
        self.by_number[number] = (start, start + rounded_size, number)
        insort(self.used, self.by_number[number])

    def release(self, number: int) -> None:
        self.used.remove(self.by_number.pop(number))

    def unmap_holes(self) -> bool:
        """Unmap all unused pages; return whether there were any."""
        needed = self.needed_pages
        unused, self.pages = self.pages - needed, self.pages & needed
        return bool(unused)

    @property
    def needed_pages(self) -> set[int]:
        return {page for start, end, _ in self.used for page in _pages(start, end)}

    def _mapped(self, start: int, end: int) -> bool:
        return all(page in self.pages for page in _pages(start, end))


def _pages(start: int, end: int) -> range:
    return range(start // PAGE_BYTES, -(-end // PAGE_BYTES))


@dataclass(frozen=True, kw_only=True)
class ReplayedRequests:
    """Result of a sequence of requests to an allocator."""

    served: int  # requests served: allocations and frees
    peak_reserved_bytes: int  # peak reserved memory
    peak_allocated_bytes: int  # peak allocated memory
    largest_free_bytes: int  # at the end: the largest request that could still be served
    failed_bytes: int | None  # size of the request that failed; None if all were served

    @property
    def unusable_bytes(self) -> int:
        """Reserved but unusable: peak reserved memory - peak allocated memory."""
        return self.peak_reserved_bytes - self.peak_allocated_bytes


def replay_requests(requests: Sequence[Request], allocator: AllocatorModel) -> ReplayedRequests:
    """Send these requests to an allocator in order, until one fails."""
    sizes: dict[int, int] = {}
    peak_reserved = allocated = peak_allocated = 0
    for done, (number, bytes_) in enumerate(requests):
        if bytes_ < 0:
            allocator.free(number)
            allocated -= block_bytes(sizes.pop(number))
            continue
        try:
            allocator.allocate(number, bytes_)
        except OutOfGpuMemory:
            return _result(allocator, done, peak_reserved, peak_allocated, bytes_)
        sizes[number] = bytes_
        allocated += block_bytes(bytes_)
        peak_reserved, peak_allocated = max(peak_reserved, allocator.reserved_bytes), max(peak_allocated, allocated)
    return _result(allocator, len(requests), peak_reserved, peak_allocated, None)


def _result(
    allocator: AllocatorModel, done: int, reserved: int, allocated: int, failed: int | None
) -> ReplayedRequests:
    free = allocator.largest_free_bytes
    return ReplayedRequests(
        served=done,
        peak_reserved_bytes=reserved,
        peak_allocated_bytes=allocated,
        largest_free_bytes=free,
        failed_bytes=failed,
    )


def allocator_table(results: Mapping[str, ReplayedRequests], below: str = "") -> View:
    """Compare allocators, one row each; `below`: a sentence under the table."""
    header = ("simulated", "requests served", "reserved", "allocated", "largest free block")
    lines = [
        (
            name,
            f"{result.served:,}",
            *(size(bytes_) for bytes_ in (result.peak_reserved_bytes, result.peak_allocated_bytes)),
            size(result.largest_free_bytes),
        )
        for name, result in results.items()
    ]
    return tables.table_view(header, lines, below=below)


def memory_requests(run: Run) -> list[Request]:
    """Return the GPU memory requests of a run in order, from its memory table."""
    rows = run.memory_rows.select(run.memory_rows["device"] >= 0)
    open_blocks: dict[int, int] = {}
    requests: list[Request] = []
    for number, (bytes_, address) in enumerate(zip(rows["bytes"].tolist(), rows["address"].tolist(), strict=True)):
        if bytes_ > 0:
            open_blocks[address] = number
            requests.append((number, bytes_))
        elif bytes_ < 0 and address in open_blocks:
            requests.append((open_blocks.pop(address), -1))
    return requests
