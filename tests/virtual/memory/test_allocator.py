"""The simulated allocator keeps PyTorch's rules, as a naive map of bytes tells and as an H100's own trace shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab import trace
from gpulab.virtual.memory_fit.allocator import Block, CachingAllocator, OutOfGpuMemory, block_bytes, segment_bytes
from tests.support.tiers import examples

KIB, MIB, GIB = 2**10, 2**20, 2**30


class ByteMap:
    """The same rules on a map with one byte for every 512: free runs are found by looking, nothing is remembered."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.segments: list[tuple[int, int, bool, bytearray]] = []  # address, stream, small, units in use
        self.next = 2 * MIB
        self.allocated = 0

    @property
    def reserved(self) -> int:
        return sum(512 * len(units) for _, _, _, units in self.segments)

    def allocate(self, size: int, stream: int) -> tuple[int, int] | None:
        """Address and bytes of the block, None where there is no room."""
        need = max(1, -(-size // 512))
        small = need <= 2048
        if not self.holes(need, stream, small):
            wanted = 2 * MIB if small else 20 * MIB if need < 20480 else -(-need * 512 // (2 * MIB)) * 2 * MIB
            if self.reserved + wanted > self.capacity:
                self.empty()
            if self.reserved + wanted > self.capacity:
                return None
            self.segments.append((self.next, stream, small, bytearray(wanted // 512)))
            self.next += wanted
        length, address, units, start = min(self.holes(need, stream, small), key=lambda hole: hole[:2])
        given = length if length - need < (1 if small else 2049) else need
        assert not any(units[start : start + given]), "given out twice"
        units[start : start + given] = b"\1" * given
        self.allocated += 512 * given
        return address, 512 * given

    def holes(self, need: int, stream: int, small: bool) -> list[tuple[int, int, bytearray, int]]:
        return [
            (len(run[0]), base + 512 * run.start(), units, run.start())
            for base, whose, kind, units in self.segments
            if (whose, kind) == (stream, small)
            for run in re.finditer(rb"\0+", units)
            if len(run[0]) >= need
        ]

    def free(self, address: int, size: int) -> None:
        base, _, _, units = next(each for each in self.segments if 0 <= address - each[0] < 512 * len(each[3]))
        start = (address - base) // 512
        assert all(units[start : start + size // 512])
        units[start : start + size // 512] = bytes(size // 512)
        self.allocated -= size

    def empty(self) -> None:
        self.segments = [each for each in self.segments if any(each[3])]


near = st.sampled_from([512, KIB, 100 * KIB, MIB, 2 * MIB, 3 * MIB, 10 * MIB, 11 * MIB, 12 * MIB, 20 * MIB])
sizes = st.one_of(st.builds(lambda at, by: at + by, near, st.integers(-512, 512)), st.integers(1, 24 * MIB))
actions = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), sizes, st.sampled_from([7, 20])),
        st.tuples(st.just("free"), st.integers(0, 10**6), st.just(0)),
        st.tuples(st.just("empty"), st.just(0), st.just(0)),
    ),
    min_size=1,
    max_size=40,
)


# The same as the map of bytes, whatever is asked.


@examples(150)
@given(actions)
def test_every_block_is_placed_in_the_smallest_free_block_that_is_large_enough(asked):
    """Address and size are those of an independent search, so no two blocks overlap, and the fit is the best."""
    allocator, oracle, live = CachingAllocator(96 * MIB, 8 * MIB), ByteMap(88 * MIB), []
    for what, number, stream in asked:
        if what == "allocate":
            expected = oracle.allocate(max(1, number), stream)
            given_out = attempt(allocator, max(1, number), stream)
            assert (given_out and (given_out.address, given_out.bytes)) == expected
            if given_out:
                live.append(given_out)
        elif what == "free" and live:
            block = live.pop(number % len(live))
            oracle.free(block.address, block.bytes)
            allocator.free(block)
        elif what == "empty":
            allocator.empty_cache()
            oracle.empty()
        assert allocator.allocated_bytes == oracle.allocated
        assert allocator.reserved_bytes == oracle.reserved
        assert allocator.allocated_bytes <= allocator.reserved_bytes <= 88 * MIB
        assert allocator.stats()["requested_bytes.all.current"] == sum(block.requested_bytes for block in live)


@examples(40)
@given(actions)
def test_the_same_requests_in_the_same_order_get_the_same_addresses(asked):
    assert places(asked) == places(asked)


@examples(40)
@given(actions)
def test_after_all_is_freed_and_the_cache_emptied_nothing_is_reserved(asked):
    allocator = CachingAllocator(GIB)
    blocks = [allocator.allocate(max(1, number), stream) for what, number, stream in asked if what == "allocate"]
    for block in blocks[::2] + blocks[1::2]:
        allocator.free(block)
    allocator.empty_cache()
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0)
    current = {name: value for name, value in allocator.stats().items() if name.endswith(".current")}
    assert not any(current.values()), current


def attempt(allocator: CachingAllocator, size: int, stream: int) -> Block | None:
    try:
        return allocator.allocate(size, stream)
    except OutOfGpuMemory:
        return None


def places(asked: list[tuple[str, int, int]]) -> list[int]:
    allocator, live, told = CachingAllocator(96 * MIB), [], []
    for what, number, stream in asked:
        if what == "allocate":
            block = attempt(allocator, max(1, number), stream)
            told.append(block.address if block else -1)
            live += [block] if block else []
        elif what == "free" and live:
            allocator.free(live.pop(number % len(live)))
        else:
            allocator.empty_cache()
    return told


# Each rule by itself.


@pytest.mark.parametrize(
    ("asked", "reserved"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (33 * MIB, 34 * MIB),
    ],
)
def test_what_a_first_request_reserves(asked, reserved):
    allocator = CachingAllocator(GIB)
    allocator.allocate(asked)
    assert allocator.reserved_bytes == reserved == segment_bytes(block_bytes(asked))


@pytest.mark.parametrize(("asked", "rounded"), [(0, 512), (1, 512), (512, 512), (513, 1024), (3 * MIB + 1, 3146240)])
def test_sizes_are_multiples_of_512_bytes(asked, rounded):
    assert block_bytes(asked) == rounded


def test_a_large_block_with_a_remainder_of_a_megabyte_is_not_split():
    allocator = CachingAllocator(GIB)
    assert allocator.allocate(11 * MIB).bytes == 12 * MIB
    assert allocator.allocate(11 * MIB - 512).bytes == 11 * MIB - 512  # here 1 MiB and 512 bytes are left
    stats = allocator.stats()
    assert stats["requested_bytes.all.current"] == 22 * MIB - 512
    assert stats["allocated_bytes.all.current"] == 23 * MIB - 512


def test_a_small_block_with_a_remainder_of_512_bytes_is_split():
    allocator = CachingAllocator(GIB)
    first = allocator.allocate(MIB)
    second = allocator.allocate(MIB - 512)
    last = allocator.allocate(1)
    assert [block.address - first.address for block in (first, second, last)] == [0, MIB, 2 * MIB - 512]
    assert allocator.reserved_bytes == 2 * MIB


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_free_neighbours_are_merged_in_any_order_of_freeing(order):
    allocator = CachingAllocator(GIB)
    blocks = [allocator.allocate(6 * MIB) for _ in range(3)]
    for place in order:
        allocator.free(blocks[place])
    assert allocator.allocate(9 * MIB).address == blocks[0].address
    assert allocator.reserved_bytes == 20 * MIB


def test_small_and_large_requests_and_streams_do_not_share_segments():
    allocator = CachingAllocator(GIB)
    allocator.free(allocator.allocate(20 * MIB))
    allocator.allocate(MIB)
    allocator.allocate(20 * MIB, stream=20)
    assert allocator.reserved_bytes == (20 + 2 + 20) * MIB


def test_the_cache_is_released_before_an_allocation_fails():
    allocator = CachingAllocator(50 * MIB)
    allocator.free(allocator.allocate(30 * MIB))
    assert allocator.allocate(40 * MIB).bytes == 40 * MIB
    assert allocator.reserved_bytes == 40 * MIB
    assert allocator.stats()["num_alloc_retries"] == 1


def test_a_segment_that_is_partly_in_use_is_not_released():
    """The classic: a lot is free, and in pieces."""
    allocator = CachingAllocator(60 * MIB)
    blocks = [allocator.allocate(9 * MIB) for _ in range(6)]
    for block in blocks[::2]:
        allocator.free(block)
    with pytest.raises(OutOfGpuMemory) as full:
        allocator.allocate(24 * MIB)
    assert full.value.reserved_bytes - full.value.allocated_bytes > 24 * MIB
    assert allocator.stats()["inactive_split_bytes.all.current"] == 60 * MIB - allocator.allocated_bytes


def test_a_failed_request_reports_sizes_and_changes_nothing():
    allocator = CachingAllocator(30 * MIB, non_torch_bytes=4 * MIB)
    allocator.allocate(3 * MIB)
    with pytest.raises(OutOfGpuMemory) as full:
        allocator.allocate(18 * MIB + 1)
    told = full.value
    assert (told.requested_bytes, told.segment_bytes) == (18 * MIB + 1, 20 * MIB)
    assert (told.free_bytes, told.capacity_bytes) == (6 * MIB, 30 * MIB)
    assert (told.allocated_bytes, told.reserved_bytes) == (3 * MIB, 20 * MIB)
    assert allocator.allocated_bytes == 3 * MIB
    assert allocator.stats()["num_ooms"] == 1
    assert allocator.allocate(3 * MIB).bytes == 3 * MIB


def test_without_a_limit_more_than_the_capacity_is_allocated():
    allocator = CachingAllocator(30 * MIB)
    allocator.enforce_limit = False
    allocator.free(allocator.allocate(30 * MIB))
    allocator.allocate(20 * MIB, stream=20)  # fits, as what is cached is given back first
    assert (allocator.reserved_bytes, allocator.retries, allocator.oom_count) == (20 * MIB, 1, 0)
    allocator.allocate(100 * MIB)
    assert (allocator.reserved_bytes, allocator.free_bytes, allocator.oom_count) == (120 * MIB, -90 * MIB, 1)


def test_a_peak_stays_until_it_is_reset():
    allocator = CachingAllocator(GIB)
    allocator.free(allocator.allocate(40 * MIB))
    allocator.empty_cache()
    allocator.allocate(5 * MIB)
    assert allocator.max_reserved_bytes == 40 * MIB
    allocator.reset_peak()
    assert allocator.max_reserved_bytes == 20 * MIB
    assert allocator.stats()["allocated_bytes.all.peak"] == 5 * MIB
    assert allocator.stats()["allocated_bytes.all.allocated"] == 45 * MIB


def test_the_pools_sum_to_all():
    allocator = CachingAllocator(GIB)
    for size in (1, MIB, 3 * MIB, 64 * MIB):
        allocator.allocate(size)
    stats = allocator.stats()
    for name in ("allocated_bytes", "allocation", "reserved_bytes", "segment", "inactive_split_bytes"):
        for which in ("current", "allocated", "freed"):
            parts = stats[f"{name}.small_pool.{which}"] + stats[f"{name}.large_pool.{which}"]
            assert stats[f"{name}.all.{which}"] == parts


def test_pytorch_can_format_the_memory_summary(monkeypatch):
    """The names are those that torch.cuda.memory_summary reads."""
    torch = pytest.importorskip("torch")
    allocator = CachingAllocator(GIB)
    allocator.allocate(33 * MIB)
    monkeypatch.setattr(torch.cuda.memory, "memory_stats", lambda device=None: allocator.stats())
    monkeypatch.setattr(torch.cuda.memory, "_get_device_index", lambda device, optional: 0)
    summary = torch.cuda.memory.memory_summary()
    assert re.search(r"Allocated memory\s*\|\s*34816 KiB", summary)
    assert re.search(r"GPU reserved memory\s*\|\s*34816 KiB", summary)


# As a real one did.


def test_addresses_match_those_of_the_allocator_on_an_h100(recorded: Callable[[str], Path]):
    """A recorded inference of TimeSformer, from the segments it had: all 381 large requests, to the byte."""
    rows = trace.read(recorded("h100_timesformer_inference.json.gz")).memory_rows
    rows = rows.select((rows["device"] >= 0) & (abs(rows["bytes"]) > MIB + 512))
    origin = int(rows["address"].min())
    # Its cached segments as their addresses show: where each begins in MiB from the first, and how many it has.
    segments = [(0, 1802), (1824, 1802), (3648, 112), (9600, 38), (10176, 38), (20924, 38), (20962, 138), (21100, 112)]
    allocator = CachingAllocator(80 * GIB)
    cached = [allocator.allocate(size * MIB) for _, size in segments]
    moved = [(block.address, block.bytes, begin * MIB) for block, (begin, _) in zip(cached, segments, strict=True)]
    allocator.allocate(5 * MIB)  # one more segment, that weights lie in, beside room for blocks of 4.6 MiB
    for block in cached:
        allocator.free(block)
    live, same, elsewhere = {}, 0, 0
    for address, size in zip(rows["address"].tolist(), rows["bytes"].tolist(), strict=True):
        if size < 0:
            allocator.free(live.pop(address))
            continue
        live[address] = block = allocator.allocate(size)
        places = [place + block.address - begin for begin, held, place in moved if 0 <= block.address - begin < held]
        same += places == [address - origin]
        elsewhere += not places
    assert (same, elsewhere) == (381, 36)
    assert same + elsewhere == int((rows["bytes"] > 0).sum())
    assert not live
