"""What the notebook on data loading imports: exact counts, an oracle that goes tick by tick, and laws of queues."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from gpulab.lessons.course import lesson
from gpulab.lessons.labs.data import caching, loading, queue_model, storage_formats

COSTS = {
    "bursty": queue_model.bursty_costs(60, 10, 110, 16),
    "even": [16.0] * 40,
    "wild": [float(each) for each in np.random.default_rng(0).integers(1, 60, 50)],
}


def ticked(costs_ms: Sequence[float], step_ms: int, workers: int, prefetch: int) -> list[int]:
    """What each step waits, found by going through the time millisecond by millisecond."""
    queued: list[list[int]] = [[] for _ in range(workers)]
    left: list[float] = [0.0] * workers
    ready: set[int] = set()
    waits = [0] * len(costs_ms)
    requested_count = taken_count = clock = training = 0

    def request_next() -> None:
        nonlocal requested_count
        if requested_count < len(costs_ms):
            queued[requested_count % workers].append(requested_count)
            requested_count += 1

    for _ in range(workers * prefetch):
        request_next()
    while taken_count < len(costs_ms):
        if not training and taken_count in ready:
            taken_count += 1
            training = step_ms
            request_next()
        for worker, queue in enumerate(queued):
            if queue:
                left[worker] += 1
                if left[worker] == costs_ms[queue[0]]:
                    ready.add(queue.pop(0))
                    left[worker] = 0
        if training:
            training -= 1
        else:
            waits[taken_count] += 1
        clock += 1
        assert clock < 100_000
    return waits


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (1, 2), (1, 6), (2, 1), (2, 2), (3, 4)])
@pytest.mark.parametrize("step_ms", [7, 20])
def test_a_loader_on_paper_waits_as_one_that_is_gone_through_tick_by_tick(
    name: str, workers: int, prefetch: int, step_ms: int
) -> None:
    simulation = queue_model.simulate_loader(COSTS[name], step_ms, workers=workers, prefetch=prefetch)
    assert list(simulation.waits_ms) == ticked(COSTS[name], step_ms, workers, prefetch)
    assert simulation.wall_ms == pytest.approx(sum(simulation.waits_ms) + step_ms * len(COSTS[name]))


@pytest.mark.parametrize("name", COSTS)
def test_more_batches_ahead_never_make_it_slower_and_never_beat_the_two_bounds(name: str) -> None:
    costs = COSTS[name]
    for workers in (1, 2, 4):
        walls = [
            queue_model.simulate_loader(costs, 20, workers=workers, prefetch=each).wall_ms for each in (1, 2, 4, 8, 64)
        ]
        assert walls == sorted(walls, reverse=True)
        assert walls[-1] >= max(sum(costs) / workers, 20 * len(costs))


def test_without_workers_every_step_waits_for_its_whole_batch() -> None:
    simulation = queue_model.simulate_loader([5.0, 7.0, 9.0], 10, workers=0)
    assert simulation.waits_ms == (5.0, 7.0, 9.0)
    assert (simulation.stalls, simulation.wall_ms) == (2, 51)


def test_the_stream_of_the_exercise_needs_six_batches_ahead() -> None:
    costs = queue_model.bursty_costs(100, 10, 110, 16)
    assert costs.count(110) == 6
    assert [queue_model.simulate_loader(costs, 20, workers=1, prefetch=each).stalls for each in (2, 5, 6, 7)] == [
        6,
        6,
        0,
        0,
    ]
    assert queue_model.simulate_loader(costs, 15, workers=1, prefetch=100).stalls > 0


def test_an_item_that_computes_uses_the_cpu_time_it_declares() -> None:
    began = time.thread_time()
    loading.CpuBoundDataset(1, cpu_s=0.02)[0]
    assert 0.02 <= time.thread_time() - began < 0.04


def test_both_kinds_of_item_give_the_same_pictures() -> None:
    waiting, computing = loading.IoBoundDataset(20, 0), loading.CpuBoundDataset(20, 0)
    for index in (0, 7, 19):
        one, label = waiting[index]
        other, same = computing[index]
        assert torch.equal(one, other)
        assert label == same == index % loading.CLASSES
        assert one.shape == (3, loading.SIDE, loading.SIDE)
        assert one.dtype == torch.float32


def test_items_at_once_follow_from_rate_and_cost() -> None:
    rate = loading.FetchRate(items=100, wall_s=0.5, cost_s=0.02)
    assert (rate.per_s, rate.concurrency) == (200, pytest.approx(4))


def test_one_reader_is_never_at_two_items_at_once() -> None:
    assert loading.time_threads(loading.IoBoundDataset(10, 0.005), 1).concurrency <= 1
    # type: ignore[arg-type]
    assert loading.time_loader(DataLoader(loading.IoBoundDataset(16, 0.002), batch_size=4)).concurrency <= 1


def test_one_thread_that_waits_for_all_needs_no_other_and_no_loop_of_its_caller() -> None:
    before = threading.active_count()
    rate = loading.time_async(loading.IoBoundDataset(40, 0.01), at_once=20)
    assert rate.items == 40
    assert 1 < rate.concurrency <= 20
    assert threading.active_count() == before


def test_an_index_is_opened_once_in_each_process() -> None:
    data = loading.SlowOpenDataset(8, open_s=0.05, wait_s=0)
    epoch_starts = loading.time_epoch_gaps(DataLoader(data, batch_size=4), 2)  # type: ignore[arg-type]
    assert epoch_starts.processes == 1
    assert data[0] == os.getpid()
    assert epoch_starts.gaps_s[0] >= 0.05
    assert epoch_starts.later_gap_s == epoch_starts.gaps_s[1]


def test_names_are_the_same_in_a_list_and_packed() -> None:
    listed, packed = loading.FileNameDataset(100, packed=False), loading.FileNameDataset(100, packed=True)
    assert [str(each, "ascii") for each in packed.names] == list(listed.names)
    assert len(listed) == len(packed) == 100
    assert listed.__getitems__([0, 5])[0] > 0


@pytest.mark.parametrize("cache", ["none", "ram", "disk"])
def test_a_cache_changes_the_reads_and_not_the_items(cache: str, tmp_path: Path) -> None:
    item_cache = {"none": None, "ram": caching.MemoryCache(), "disk": caching.DiskCache(tmp_path)}[cache]
    store, uncached = caching.RemoteDataset(12, item_cache, wait_s=0), caching.RemoteDataset(12, wait_s=0)
    loader = DataLoader(store, batch_size=4)  # type: ignore[arg-type]
    assert caching.count_store_reads(loader, 3) == ([12, 12, 12] if cache == "none" else [12, 0, 0])
    assert [store[index][0] for index in range(12)] == [uncached[index][0] for index in range(12)]


def test_a_cache_on_disk_holds_whole_items_under_their_own_names(tmp_path: Path) -> None:
    caching.count_store_reads(
        [[0, torch.tensor([caching.RemoteDataset(3, caching.DiskCache(tmp_path), wait_s=0)[2][1]])]], 1
    )
    assert [each.name for each in tmp_path.iterdir()] == ["000002.f32"]
    assert (tmp_path / "000002.f32").stat().st_size == caching.ITEM_BYTES


def test_the_mean_wait_lies_between_hit_and_miss() -> None:
    assert caching.mean_wait_ms(0, 1, 20) == 20
    assert caching.mean_wait_ms(1, 1, 20) == 1
    assert caching.mean_wait_ms(0.5, 1, 20) == pytest.approx(10.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows_folder = tmp_path_factory.mktemp("rows")
    storage_formats.write_layouts(rows_folder, np.random.default_rng(0).normal(0, 1, (50, 16)).astype(np.float32))
    return rows_folder


@pytest.mark.parametrize(
    ("reader", "opens"),
    [
        (storage_formats.read_from_files, 50),
        (storage_formats.read_from_memmap, 3),
        (storage_formats.read_from_tar, 1),
        (storage_formats.stream_tar, 1),
    ],
)
def test_each_way_of_reading_gives_the_same_rows_in_its_own_number_of_opens(
    reader: storage_formats.Reader, opens: int, folder: Path
) -> None:
    order = np.random.default_rng(1).permutation(50).tolist()
    timing = storage_formats.time_reader(reader, folder, order)
    assert timing.opens == opens
    assert timing.total == pytest.approx(float(np.load(folder / "rows.npy").sum()), rel=1e-4)
    assert timing.remote_s(0.01) == pytest.approx(timing.wall_s + 0.01 * opens)


def test_only_opens_under_the_folder_are_counted_and_only_meanwhile(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with storage_formats.count_opens(folder) as opened, storage_formats.count_opens(tmp_path) as outer_log:
        other.write_text("a")
        storage_formats.row_file(folder, 0).read_bytes()
        os.close(os.open(storage_formats.row_file(folder, 1), os.O_RDONLY))
    storage_formats.row_file(folder, 2).read_bytes()
    assert [Path(each).name for each in opened.paths] == ["row-000000.f32", "row-000001.f32"]
    assert (opened.count, outer_log.count) == (2, 1)


def test_tables_show_a_row_for_each_way(folder: Path) -> None:
    read = storage_formats.ReaderTiming(opens=3, wall_s=0.03, total=1.0)
    assert storage_formats.reader_table({"one map": read}, per_open_s=0.01).loc["one map"].tolist() == [3, 30, 60]
    reads = caching.cache_table({"memory": [96, 24]}, items=96).loc["memory"]
    assert reads.tolist() == [96, 24, "75 %", 120]
    fetched = loading.FetchRate(items=40, wall_s=2.0, cost_s=0.1)
    assert loading.worker_table({"waits": {2: fetched}}).loc[2].tolist() == [20, 2.0]


@pytest.mark.parametrize(("answer", "told"), [(5, "6 of 99"), (7, "with 6"), ("six", "whole number"), (6, None)])
def test_the_answer_to_the_stream_is_judged_with_a_reason(answer: object, told: str | None) -> None:
    said = lesson("05").find_question("ahead").find_problem(answer)  # type: ignore[misc]
    assert said is None if told is None else told in str(said)


def test_a_reader_is_counted_and_checked(folder: Path) -> None:
    orders = [list(range(50)), list(range(49, -1, -1))]
    by_files = storage_formats.check_reader(
        lambda where, some: [storage_formats.read_from_files(where, each) for each in some], folder, orders
    )
    assert by_files == storage_formats.EpochReadCost(opens=100, peak_mb=1, correct=True)
    wrong = storage_formats.check_reader(lambda where, some: [0.0 for _ in some], folder, orders)
    assert (wrong.opens, wrong.correct) == (0, False)
    assert not storage_formats.check_reader(lambda where, some: [0.0], folder, orders).correct
    assert not storage_formats.check_reader(lambda where, some: None, folder, orders).correct
    hoarding = storage_formats.check_reader(
        lambda where, some: [float(np.ones(400_000).sum()) for _ in some], folder, orders
    )
    assert hoarding.peak_mb == 4
