"""What two allocators hold of a card for the same requests: with segments of fixed size, and with one that grows."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpulab.lessons.labs import tables
from gpulab.run import Run
from gpulab.views.sheet.view import View
from gpulab.virtual.memory_fit.allocator import Block, CachingAllocator, Full, rounded_bytes
from gpulab.wording import size

PAGE_BYTES = 2 * 2**20  # what an expandable segment maps at a time
SMALL_BYTES = 2**20  # requests up to this come from a segment of their own

Request = tuple[int, int]  # a number, and bytes; -1: it is given back


class Allocator(Protocol):
    """Takes requests, and says what it holds of the card."""

    @property
    def reserved_bytes(self) -> int:
        """Held of the card."""

    @property
    def largest_free_bytes(self) -> int:
        """The largest request that could be served."""

    def ask(self, number: int, size: int) -> None:
        """Give out memory. Raises Full where there is none."""

    def give_back(self, number: int) -> None:
        """Take it back."""


class FixedSegments:
    """PyTorch's allocator with its default settings: a segment is asked of the driver in one piece and stays so."""

    def __init__(self, capacity_bytes: int) -> None:
        self._allocator = CachingAllocator(capacity_bytes)
        self._blocks: dict[int, Block] = {}

    @property
    def reserved_bytes(self) -> int:
        """Held of the card."""
        return self._allocator.reserved_bytes

    @property
    def largest_free_bytes(self) -> int:
        """The largest request that could be served: a hole beside something in use, or all that the driver has.

        Segments in which nothing lies go back to the driver first, as PyTorch does where memory runs short.
        """
        neighbours = (each for block in self._blocks.values() for each in (block.before, block.after))
        holes = [each.bytes for each in neighbours if each is not None and each.free]
        self._allocator.empty_cache()
        return max([*holes, self._allocator.free_bytes])

    def ask(self, number: int, size: int) -> None:
        """Give out memory. Raises Full where no piece is large enough."""
        self._blocks[number] = self._allocator.allocate(size)

    def give_back(self, number: int) -> None:
        """Take it back."""
        self._allocator.free(self._blocks.pop(number))


class GrowingSegment:
    """expandable_segments:True: addresses for the whole card, and memory mapped to them in pages, where it is needed.

    A hole is filled if a request fits into it; else the segment grows at its end. Where the card is full, the pages of
    holes are taken away and mapped at the end: what is free is then of use wherever it lies. Small requests have a
    segment of their own; both share the card.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._kinds = {True: _Stretch(), False: _Stretch()}  # small, large
        self._where: dict[int, bool] = {}

    @property
    def reserved_bytes(self) -> int:
        """Held of the card."""
        return sum(each.mapped_bytes for each in self._kinds.values())

    @property
    def largest_free_bytes(self) -> int:
        """The largest request that could be served: all pages in which nothing lies, together."""
        kept = sum(len(each.needed_pages) for each in self._kinds.values()) * PAGE_BYTES
        return self.capacity_bytes - kept

    def ask(self, number: int, size: int) -> None:
        """Give out memory. Raises Full where all that is free together does not suffice."""
        wanted = rounded_bytes(size)
        small = wanted <= SMALL_BYTES
        stretch = self._kinds[small]
        start = stretch.place_for(wanted)
        while self.reserved_bytes + stretch.pages_needed(start, wanted) > self.capacity_bytes:
            if not any(each.unmap_holes() for each in self._kinds.values()):
                raise Full(
                    asked_bytes=size,
                    needed_bytes=stretch.pages_needed(start, wanted),
                    free_bytes=self.capacity_bytes - self.reserved_bytes,
                    allocated_bytes=sum(each.used_bytes for each in self._kinds.values()),
                    reserved_bytes=self.reserved_bytes,
                    capacity_bytes=self.capacity_bytes,
                )
            start = stretch.place_for(wanted)
        stretch.take(number, start, wanted)
        self._where[number] = small

    def give_back(self, number: int) -> None:
        """Take it back."""
        self._kinds[self._where.pop(number)].release(number)


class _Stretch:
    """One growing segment: what is given out by address, and which pages are mapped."""

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

    def place_for(self, wanted: int) -> int:
        """The smallest hole that is mapped and large enough; else the end of what is given out."""
        end, holes = 0, []
        for start, until, _ in self.used:
            if start - end >= wanted and self._mapped(end, end + wanted):
                holes.append((start - end, end))
            end = until
        return min(holes)[1] if holes else end

    def pages_needed(self, start: int, wanted: int) -> int:
        """Bytes of the pages that are not mapped yet."""
        return sum(PAGE_BYTES for page in _pages(start, start + wanted) if page not in self.pages)

    def take(self, number: int, start: int, wanted: int) -> None:
        self.pages |= set(_pages(start, start + wanted))
        self.by_number[number] = (start, start + wanted, number)
        insort(self.used, self.by_number[number])

    def release(self, number: int) -> None:
        self.used.remove(self.by_number.pop(number))

    def unmap_holes(self) -> bool:
        """Take away every page in which nothing lies; whether there was one."""
        needed = self.needed_pages
        gone, self.pages = self.pages - needed, self.pages & needed
        return bool(gone)

    @property
    def needed_pages(self) -> set[int]:
        return {page for start, end, _ in self.used for page in _pages(start, end)}

    def _mapped(self, start: int, end: int) -> bool:
        return all(page in self.pages for page in _pages(start, end))


def _pages(start: int, end: int) -> range:
    return range(start // PAGE_BYTES, -(-end // PAGE_BYTES))


@dataclass(frozen=True, kw_only=True)
class Played:
    """How far an allocator came with some requests."""

    done: int  # requests served, of memory or of taking it back
    held_bytes: int  # of the card, at most
    given_bytes: int  # at most at once
    largest_free_bytes: int  # at the end: the largest request that it could still serve
    refused_bytes: int | None  # of the request that it could not serve; None: it served all

    @property
    def stranded_bytes(self) -> int:
        """Held and of no use, when most was held."""
        return self.held_bytes - self.given_bytes


def play(requests: Sequence[Request], allocator: Allocator) -> Played:
    """Ask an allocator for all of these, one after the other, until it cannot."""
    sizes: dict[int, int] = {}
    held = given = most = 0
    for done, (number, bytes_) in enumerate(requests):
        if bytes_ < 0:
            allocator.give_back(number)
            given -= rounded_bytes(sizes.pop(number))
            continue
        try:
            allocator.ask(number, bytes_)
        except Full:
            return _played(allocator, done, held, most, bytes_)
        sizes[number] = bytes_
        given += rounded_bytes(bytes_)
        held, most = max(held, allocator.reserved_bytes), max(most, given)
    return _played(allocator, len(requests), held, most, None)


def _played(allocator: Allocator, done: int, held: int, given: int, refused: int | None) -> Played:
    free = allocator.largest_free_bytes
    return Played(done=done, held_bytes=held, given_bytes=given, largest_free_bytes=free, refused_bytes=refused)


def beside(played: Mapping[str, Played], below: str = "") -> View:
    """How far each came, a row each; `below`: a sentence under it."""
    header = ("simulated", "requests served", "held", "given out", "largest free piece")
    lines = [
        (
            name,
            f"{told.done:,}",
            *(size(bytes_) for bytes_ in (told.held_bytes, told.given_bytes)),
            size(told.largest_free_bytes),
        )
        for name, told in played.items()
    ]
    return tables.rows(header, lines, below=below)


def requests_of(run: Run) -> list[Request]:
    """What a run asked of its GPU's memory, in order, as its memory table has it."""
    rows = run.memory_rows.where(run.memory_rows["device"] >= 0)
    open_: dict[int, int] = {}
    found: list[Request] = []
    for number, (bytes_, address) in enumerate(zip(rows["bytes"].tolist(), rows["address"].tolist(), strict=True)):
        if bytes_ > 0:
            open_[address] = number
            found.append((number, bytes_))
        elif bytes_ < 0 and address in open_:
            found.append((open_.pop(address), -1))
    return found
