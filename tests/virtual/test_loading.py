"""DataLoaders under a virtual GPU: they run for real, batches are what they would be, and what each took is told."""

import contextlib
import gc
import heapq
import os
import random
import time
import weakref
from dataclasses import dataclass

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.capture.hooks.loader_hooks import StepMarks
from gpulab.tables import MarkKind
from gpulab.virtual.device.tensors.pinned import PinnedStorages
from gpulab.virtual.loading import build_time
from gpulab.virtual.loading import hooks as loading
from gpulab.virtual.loading.arrivals import BatchArrivals, handover_ns
from gpulab.virtual.loading.batch_tensors import batch_size_bytes
from gpulab.virtual.loading.hooks import log_batches
from gpulab.virtual.loading.sample_batch import SAMPLE_BUILD_TIME
from gpulab.virtual.op_log.ops import BatchFetch

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info  # noqa: E402

MS = 1_000_000
CLOCK = {"ns": 0}  # what Tick reads, and the datasets below move


class Tick:
    """In place of the stopwatch: time is what the datasets say it is, in each process by itself."""

    def now_ns(self):
        return CLOCK["ns"]

    def close(self):
        pass


class Items(Dataset):
    """Item i is a row of i; building it takes i + 1 ms by CLOCK."""

    def __init__(self, count=6):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        CLOCK["ns"] += (index + 1) * MS
        return torch.full((2,), float(index))


class Stream(IterableDataset):
    def __init__(self, count=6):
        self.count = count

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, self.count, step):
            CLOCK["ns"] += (index + 1) * MS
            yield torch.full((2,), float(index))


class Drawing(Items):
    """Draws random numbers, as augmentation does."""

    def __getitem__(self, index):
        torch.rand(1), np.random.rand(), random.random()
        return super().__getitem__(index)


class Failing(Items):
    def __getitem__(self, index):
        if index == 3:
            raise ValueError("item three is broken")
        return super().__getitem__(index)


class Interrupted(Items):
    def __getitem__(self, index):
        raise KeyboardInterrupt


class Nested(Items):
    """Builds an item with a loader of its own."""

    def __getitem__(self, index):
        inner = DataLoader(Items(index + 1), batch_size=1)
        return torch.stack([batch.sum() for batch in inner]).sum()


class Where(Items):
    def __getitem__(self, index):
        return torch.tensor([os.getpid()])


class Burning(Items):
    def __getitem__(self, index):
        began = time.process_time_ns()
        while time.process_time_ns() - began < 3 * MS:
            pass
        return torch.ones(1)


class Sleeping(Items):
    def __getitem__(self, index):
        time.sleep(0.003)
        return torch.ones(1)


@dataclass
class Pair:
    left: object
    right: object


class Holder:
    """A batch that knows how to be pinned, as PyTorch lets users write it."""

    def __init__(self, rows):
        self.rows = torch.stack(rows)

    def pin_memory(self):
        self.rows = self.rows.pin_memory()
        return self


def on_gpu(item):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return {"item": [torch.ones(2, device="cuda")]}


def slow_start(worker):
    time.sleep(0.02)


def told_start(worker):
    torch.manual_seed(100 + worker)


@pytest.fixture
def pinned(monkeypatch):
    """Tensors that know how to be pinned, as those of a virtual GPU do."""
    kept = PinnedStorages()

    def pin(tensor, device=None):  # which PyTorch before 2.11 gives
        made = tensor.clone()
        kept.add(made)
        return made

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    return kept


@pytest.fixture
def ticking(monkeypatch):
    monkeypatch.setattr(build_time, "Stopwatch", Tick)
    monkeypatch.setattr(loading, "Stopwatch", Tick)
    CLOCK["ns"] = 0


def modes_off():
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


@contextlib.contextmanager
def fetching(off=contextlib.nullcontext):
    fetches = []
    with log_batches(fetches.append, off) as watch:
        fetches_and_watch = fetches, watch
        yield fetches_and_watch


def fetched(loader, passes=1, off=contextlib.nullcontext):
    """The batches of a loader, and what was written of them."""
    with fetching(off) as (fetches, _):
        batches = [batch for _ in range(passes) for batch in loader]
    return batches, fetches


def built_ms(fetches):
    return [(fetch.build_ns - fetch.epoch_start_ns) / MS for fetch in fetches if fetch.yielded]


def firsts(batches):
    return [batch[:, 0].tolist() if batch.dim() == 2 else batch[0].item() for batch in batches]


@pytest.fixture(scope="module", autouse=True)
def others():
    """The processes that tests of other files have left running in this one."""
    return set(psutil.Process().children())


# What is written.


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_every_batch_is_told_with_what_building_it_took_whoever_built_it(ticking, workers):
    batches, fetches = fetched(DataLoader(Items(), batch_size=2, num_workers=workers))
    assert firsts(batches) == [[0, 1], [2, 3], [4, 5]]
    assert [fetch.yielded for fetch in fetches] == [True, True, True, False]
    assert built_ms(fetches) == [1 + 2, 3 + 4, 5 + 6]
    assert [fetch.bytes for fetch in fetches] == [16, 16, 16, -1]
    assert all(fetch.loader == 0 and fetch.epoch == 0 for fetch in fetches)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_told_as_well(ticking, workers):
    batches, fetches = fetched(DataLoader(Stream(), batch_size=None, num_workers=workers))
    assert firsts(batches) == [0, 1, 2, 3, 4, 5]
    assert built_ms(fetches) == [1, 2, 3, 4, 5, 6]


def test_batches_of_workers_are_real_time_of_theirs_and_what_they_compute_is_cpu_time():
    for dataset, waits in ((Burning(2), False), (Sleeping(2), True)):
        for workers in (0, 1):
            _, fetches = fetched(DataLoader(dataset, batch_size=2, num_workers=workers))
            assert built_ms(fetches)[0] >= 6
            assert (fetches[0].build_cpu_ns >= 6 * MS) is not waits


def test_the_end_of_a_pass_costs_nothing_where_workers_build():
    _, fetches = fetched(DataLoader(Items(2), num_workers=1))
    assert (fetches[-1].yielded, fetches[-1].build_ns, fetches[-1].build_cpu_ns) == (False, 0, 0)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_first_batch_carries_what_starting_the_workers_took(start):
    loader = DataLoader(Items(3), num_workers=1, worker_init_fn=slow_start, multiprocessing_context=start)
    with fetching() as (fetches, watch):
        batches = list(loader)
    assert firsts(batches) == [[0], [1], [2]]
    assert fetches[0].epoch_start_ns >= 20 * MS
    assert fetches[0].build_ns >= fetches[0].epoch_start_ns
    assert [fetch.epoch_start_ns for fetch in fetches[1:]] == [0, 0, 0]
    assert watch.assumptions == (), "workers measure however they are started"


def test_each_pass_is_an_epoch_and_each_loader_a_number():
    train, test = DataLoader(Items(2)), DataLoader(Items(2), batch_size=2)
    with fetching() as (fetches, _):
        for _ in range(2):
            list(train)
            list(test)
    told = [(fetch.loader, fetch.epoch) for fetch in fetches if fetch.yielded]
    assert told == [(0, 0), (0, 0), (1, 0), (0, 1), (0, 1), (1, 1)]


@pytest.mark.parametrize("workers", [0, 2])
def test_two_iterators_of_one_loader_at_once_are_two_passes(ticking, workers):
    loader = DataLoader(Items(2), num_workers=workers)
    with fetching() as (fetches, _):
        pairs = list(zip(loader, loader, strict=True))
    assert [(a[0, 0].item(), b[0, 0].item()) for a, b in pairs] == [(0, 0), (1, 1)]
    assert [fetch.epoch for fetch in fetches if fetch.yielded] == [0, 1, 0, 1]
    assert built_ms(fetches) == [1, 1, 2, 2]


def test_a_loader_inside_a_dataset_is_part_of_that_datasets_work(ticking):
    for workers in (0, 1):
        batches, fetches = fetched(DataLoader(Nested(3), num_workers=workers))
        assert [batch.item() for batch in batches] == [0, 2, 6]
        assert built_ms(fetches) == [1, 3, 6]
        assert {fetch.loader for fetch in fetches} == {0}


def test_a_batch_of_any_make_has_its_tensors_counted():
    made = {"a": torch.ones(3), "b": [torch.ones(2, dtype=torch.float16), "text", 3], "c": Pair(torch.ones(1), None)}
    _, fetches = fetched(DataLoader([0], batch_size=None, collate_fn=lambda _: made))
    assert fetches[0].bytes == 12 + 4 + 4
    _, fetches = fetched(DataLoader([0], batch_size=None, collate_fn=lambda _: Holder([torch.ones(5)])))
    assert fetches[0].bytes == 20
    _, fetches = fetched(DataLoader([0], batch_size=None, collate_fn=lambda _: "only text"))
    assert fetches[0].bytes == -1


@dataclass(slots=True)
class Slotted:
    rows: object


def test_a_batch_that_holds_itself_or_too_much_to_look_through_ends_all_the_same():
    shared = torch.ones(3)
    ring = {"rows": shared, "again": [shared], "slotted": Slotted(torch.ones(1))}
    ring["self"] = ring
    assert batch_size_bytes(ring) == 16
    assert batch_size_bytes([shared, list(range(10**6))]) == -1
    assert batch_size_bytes(torch.nn.Linear(2, 3)) == 4 * (6 + 3)


# The program must not notice.


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_seed_gives_the_same_batches_watched_or_not(workers):
    def batches():
        torch.manual_seed(7)
        loader = DataLoader(Items(8), batch_size=2, shuffle=True, num_workers=workers)
        return firsts(loader), torch.rand(1).item()

    plain = batches()
    with fetching():
        assert batches() == plain


def test_the_users_own_worker_init_fn_and_collate_fn_run():
    loader = DataLoader(Items(2), num_workers=1, worker_init_fn=told_start, collate_fn=lambda _: torch.initial_seed())
    assert fetched(loader)[0] == [100, 100]
    assert loader.worker_init_fn is told_start


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_the_dataset_is_the_programs_own(workers):
    loader = DataLoader(Failing(), num_workers=workers)
    with fetching() as (fetches, _), pytest.raises(ValueError, match="item three is broken"):
        firsts(iterator := iter(loader))
    assert [fetch.yielded for fetch in fetches] == [True, True, True, False]
    assert loader.worker_init_fn is None
    if workers:
        iterator._shutdown_workers()  # PyTorch leaves a cycle after an error in a worker; the next one's inherited it


def test_an_early_break_leaves_no_worker(nothing_left):
    with fetching() as (fetches, _):
        for _ in DataLoader(Items(), num_workers=2):
            break
        gc.collect()
    assert len(fetches) == 1


def test_persistent_workers_stay_and_go_on_when_nobody_watches_any_more(ticking, pinned):
    loader = DataLoader(Where(2), num_workers=1, persistent_workers=True, pin_memory=True)
    batches, fetches = fetched(loader, passes=2)
    assert len({batch.item() for batch in batches}) == 1
    assert [fetch.epoch for fetch in fetches] == [0, 0, 0, 1, 1, 1]
    after = list(loader)
    assert all(type(batch) is torch.Tensor for batch in after)
    assert {batch.item() for batch in after} == {batches[0].item()}


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_is_gone_with_the_last_who_holds_it(workers, pinned):
    gc.collect()
    gc.disable()
    try:
        with fetching():
            iterator = iter(DataLoader(Items(), num_workers=workers, pin_memory=True))
            next(iterator)
            dead = weakref.ref(iterator)
            del iterator
        assert dead() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_goes_on_when_nobody_watches_any_more(workers, pinned):
    with fetching() as (fetches, _):
        iterator = iter(DataLoader(Items(4), num_workers=workers, pin_memory=True))
        next(iterator)
    assert firsts(iterator) == [[1], [2], [3]]
    assert len(fetches) == 1


def test_an_iterator_from_before_is_taken_up_and_what_was_assumed_is_said(ticking):
    torch.manual_seed(3)
    numpy_state, python_state = np.random.get_state(), random.getstate()
    loader = DataLoader(Drawing(4), num_workers=1, shuffle=True)
    plain = firsts(loader), torch.rand(1).item(), np.random.rand(), random.random()
    torch.manual_seed(3)
    np.random.set_state(numpy_state)
    random.setstate(python_state)
    iterator = iter(loader)
    with fetching() as (fetches, watch):
        watched_too = firsts(iterator), torch.rand(1).item(), np.random.rand(), random.random()
    assert watched_too == plain, "building a batch here drew no number that the program would have drawn"
    (assumption,) = watch.assumptions
    assert (assumption.value, assumption.count) == (SAMPLE_BUILD_TIME, 4)
    assert len(set(built_ms(fetches))) == 1
    assert built_ms(fetches)[0] in (1, 2, 3, 4)


def test_of_a_stream_from_before_no_item_is_lost():
    iterator = iter(DataLoader(Stream(3), num_workers=1))
    with fetching() as (_, watch):
        assert firsts(iterator) == [[0], [1], [2]]
    assert watch.assumptions[0].value == "the wait for the batch"


def test_everything_is_as_before_after_an_error_or_ctrl_c(nothing_left, pinned):
    from torch.utils.data import dataloader

    hooks = DataLoader.__iter__, dataloader._BaseDataLoaderIter.__next__
    for dataset, error in ((Failing(), ValueError), (Interrupted(), KeyboardInterrupt)):
        with pytest.raises(error), fetching():
            list(DataLoader(dataset, pin_memory=True))
        assert (DataLoader.__iter__, dataloader._BaseDataLoaderIter.__next__) == hooks


def test_a_hook_that_came_later_and_stayed_is_not_thrown_out():
    original = DataLoader.__iter__
    try:
        with fetching() as (fetches, _):
            ours = DataLoader.__iter__
            DataLoader.__iter__ = lambda loader: ours(loader)
        assert firsts(DataLoader(Items(2))) == [[0], [1]]
        assert fetches == []
    finally:
        DataLoader.__iter__ = original


@pytest.mark.parametrize("workers", [0, 1])
def test_under_fake_tensors_batches_are_real(workers, pinned):
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode(), fetching(modes_off) as (fetches, _):
        batches = list(DataLoader(Items(4), batch_size=2, shuffle=True, num_workers=workers, pin_memory=True))
        outside = torch.ones(1)
    assert isinstance(outside, FakeTensor)
    assert sorted(value for batch in batches for value in batch[:, 0].tolist()) == [0, 1, 2, 3]
    assert len(fetches) == 3


class OnGpu(Items):
    def __getitem__(self, index):
        return torch.full((2,), float(index), device="cuda")


def test_a_dataset_that_puts_its_batches_on_the_gpu_is_let_and_others_are_spared_the_modes():
    from torch._subclasses.fake_tensor import FakeTensorMode

    entered = []

    @contextlib.contextmanager
    def on():
        entered.append("on")
        yield

    @contextlib.contextmanager
    def off():
        entered.append("off")
        with modes_off():
            yield

    with FakeTensorMode(), log_batches(lambda fetch: entered.append(fetch.bytes), off, on):
        gpu, cpu = (iter(DataLoader(items, batch_size=None)) for items in (OnGpu(3), Items(3)))
        entered.clear()
        assert {next(gpu).device.type for _ in range(3)} == {"cuda"}
        assert entered == ["on", 8, "on", 8, "on", 8]
        entered.clear()
        assert [tuple(next(cpu).shape) for _ in range(3)] == [(2,)] * 3
        assert entered == ["on", 8, "off", 8, "off", 8]


def test_a_forked_worker_that_touches_the_gpu_fails_as_a_real_one_does():
    loader = DataLoader([0], batch_size=None, num_workers=1, collate_fn=on_gpu)
    with fetching(), pytest.raises(RuntimeError, match="Cannot re-initialize CUDA in forked subprocess"):
        list(loader)


@pytest.mark.full
def test_modes_are_off_just_while_a_loader_works():
    switched = []

    @contextlib.contextmanager
    def off():
        switched.append("off")
        try:
            yield
        finally:
            switched.append("on")

    with log_batches(lambda fetch: switched.append("batch" if fetch.yielded else "end"), off):
        switched.extend("step" for _ in DataLoader(Items(1), num_workers=1))
    assert switched == ["off", "on", "off", "on", "batch", "step", "off", "on", "end"]


def test_marks_of_a_recording_see_the_same_loaders(pinned):
    train, test = DataLoader(Items(4), num_workers=1, pin_memory=True), DataLoader(Items(2), batch_size=2)
    with fetching() as (fetches, _):
        marks = StepMarks(lambda _: None)
        marks.install()
        try:
            for _ in range(2):
                list(train)
                list(test)
        finally:
            marks.remove()
    rows = marks.rows(0).of_kind(MarkKind.NEXT)
    told = [(fetch.loader, fetch.epoch, fetch.yielded) for fetch in fetches]
    assert told == list(zip(rows["loader"], rows["epoch"], rows["yielded"], strict=True))
    assert [loader.pin_memory for loader in marks.loaders] == [True, False]


def test_loaders_of_other_threads_work_and_are_not_told(pinned):
    import threading

    got = []
    with fetching() as (fetches, _):
        loader = DataLoader(Items(3), num_workers=1, pin_memory=True)
        thread = threading.Thread(target=lambda: got.extend(firsts(loader)))
        thread.start()
        thread.join()
    assert (got, fetches) == ([[0], [1], [2]], [])


# Pinned memory.


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_a_pinning_loader_are_pinned_as_tensors_of_the_virtual_gpu_are(workers, pinned):
    def collate(rows):
        return {"rows": torch.stack(rows), "pair": (rows[0] + 0, Holder(rows))}

    loader = DataLoader(Items(2), batch_size=2, num_workers=workers, pin_memory=True, collate_fn=collate)
    with fetching():
        (batch,) = loader
        (plain,) = DataLoader(Items(2), batch_size=2, num_workers=workers)
    assert pinned.has(batch["rows"])
    assert pinned.has(batch["pair"][0])
    assert pinned.has(batch["pair"][1].rows)
    assert not pinned.has(plain)
    assert loader.pin_memory is True


def test_pinning_a_batch_does_not_pin_the_dataset_it_is_a_view_of(pinned):
    rows = torch.arange(8.0).reshape(4, 2)
    with fetching():
        batches = list(DataLoader(rows, batch_size=None, pin_memory=True))
    assert [batch.tolist() for batch in batches] == rows.tolist()
    assert all(map(pinned.has, batches))
    assert not pinned.has(rows)


def test_a_loader_kept_for_a_second_virtual_gpu_pins_there_but_not_between(pinned):
    loader = DataLoader(Items(2), num_workers=1, persistent_workers=True, pin_memory=True)
    for _ in range(2):
        with fetching() as (fetches, watch):
            assert all(map(pinned.has, list(loader)))
        assert watch.assumptions == ()
        assert {(fetch.loader, fetch.epoch) for fetch in fetches} == {(0, 0)}
        assert not any(map(pinned.has, list(loader)))


# The queue of workers on virtual time.


def oracle(workers, prefetch, took, steps):
    """Event by event: tasks lie in each worker's own queue, the main thread takes batches in order, then computes."""
    queues = [[] for _ in range(workers)]
    busy, ready, events, given = [False] * workers, {}, [], 0

    def give(now):
        nonlocal given
        if given < len(took):
            queues[given % workers].append(given)
            given += 1
            start((given - 1) % workers, now)

    def start(worker, now):
        if queues[worker] and not busy[worker]:
            busy[worker] = True
            heapq.heappush(events, (now + took[queues[worker][0]], 0, worker))

    for _ in range(workers * prefetch):
        give(0)
    heapq.heappush(events, (0, 1, -1))
    there, asking = [], False
    while events and len(there) < len(took):
        now, kind, worker = heapq.heappop(events)
        if kind == 0:
            ready[queues[worker].pop(0)] = now
            busy[worker] = False
            start(worker, now)
        else:
            asking = True
        if asking and len(there) in ready:
            asking = False
            give(now)
            heapq.heappush(events, (now + steps[len(there)], 1, -1))
            there.append(now)
    return there


def arrived(arrivals, took, steps, cpu_frac=0.0, begin=0):
    now, there = begin, []
    for built, step in zip(took, steps, strict=True):
        there.append(arrivals.arrival_ns(now, built, round(built * cpu_frac)))
        now = there[-1] + step
    return there


LOADS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=40)


@given(workers=st.integers(1, 5), prefetch=st.integers(1, 3), load=LOADS)
def test_batches_arrive_as_in_a_simulation_event_by_event(workers, prefetch, load):
    took, steps = zip(*load, strict=True)
    assert arrived(BatchArrivals(workers, prefetch), took, steps) == oracle(workers, prefetch, took, steps)


@given(load=LOADS)
def test_without_workers_a_batch_is_there_when_it_is_built(load):
    took, steps = zip(*load, strict=True)
    expected = np.cumsum(took) + np.cumsum([0, *steps[:-1]])
    assert arrived(BatchArrivals(0), took, steps) == expected.tolist()


@given(
    workers=st.integers(1, 8),
    prefetch=st.integers(1, 4),
    built=st.integers(0, 90),
    steps=st.lists(st.integers(0, 60), min_size=1, max_size=40),
)
def test_more_workers_never_make_a_batch_later_where_there_are_cores_enough(workers, prefetch, built, steps):
    # Of batches that are alike: of others a worker more changes which of them stand behind a slow one.
    took = [built] * len(steps)
    fewer, more = (arrived(BatchArrivals(count, prefetch), took, steps) for count in (workers, workers + 1))
    assert all(a >= b for a, b in zip(fewer, more, strict=True))


@given(workers=st.integers(0, 4), load=LOADS)
def test_batches_come_in_order_and_never_before_they_are_asked_for(workers, load):
    took, steps = zip(*load, strict=True)
    there = arrived(BatchArrivals(workers, 2), took, steps, begin=1000)
    asked = [1000, *(time + step for time, step in zip(there, steps, strict=True))]
    assert there == sorted(there)
    assert all(time >= ask for time, ask in zip(there, asked, strict=False))


@pytest.mark.parametrize(
    ("workers", "built", "step"), [(1, 90, 20), (2, 90, 20), (4, 90, 20), (3, 30, 50), (2, 20, 10)]
)
def test_the_pace_is_the_slower_of_the_step_and_the_workers(workers, built, step):
    there = arrived(BatchArrivals(workers, 2), [built] * 240, [step] * 240)
    pace = (there[-1] - there[-121]) / 120
    assert pace == pytest.approx(max(step, built / workers), rel=0.01)


@given(workers=st.integers(1, 4), load=LOADS)
def test_batches_asked_for_at_once_come_in_order_too(workers, load):
    arrivals = BatchArrivals(workers, 2)
    there = [arrivals.arrival_ns(0, took, 0) for took, _ in load]
    assert there == sorted(there)


def test_workers_that_compute_are_held_to_the_cores_that_the_main_thread_leaves():
    def pace(cores, crowd=0.0, main_share=1.0):
        arrivals = BatchArrivals(8, 2, cores=cores, main_share=main_share, crowd=crowd)
        there = arrived(arrivals, [80 * MS] * 240, [MS] * 240, cpu_frac=1.0)
        return (there[-1] - there[-121]) / 120 / MS

    assert pace(9) == pytest.approx(80 / 8, rel=0.01)
    assert pace(5, main_share=0.5) == pytest.approx(80 / 4.5, rel=0.01)
    assert pace(5) == pytest.approx(80 / (5 * 8 / 9), rel=0.01), "nine that want five cores have an equal share"
    assert pace(1) == pytest.approx(80 * 9 / 8, rel=0.01)
    assert pace(9, crowd=0.25) > pace(9), "caches and clocks are shared even so"
    waiting = arrived(BatchArrivals(8, 2, cores=1), [80 * MS] * 240, [MS] * 240, cpu_frac=0.0)
    assert waiting == arrived(BatchArrivals(8, 2), [80 * MS] * 240, [MS] * 240), "who waits for a disk needs no core"


def test_what_starting_the_workers_took_holds_up_all_of_them():
    started = BatchArrivals(2, 1)
    assert started.arrival_ns(100, 50 + 7, 0, starting_ns=50) == 157
    assert started.arrival_ns(157, 90, 0) == 100 + 50 + 90


def test_taking_a_batch_over_costs_by_its_size_and_the_end_of_a_pass_what_it_took():
    batch = BatchFetch(loader=0, epoch=0, yielded=True, build_ns=5 * MS, build_cpu_ns=0, bytes=19_000_000)
    end = BatchFetch(loader=0, epoch=0, yielded=False, build_ns=MS, build_cpu_ns=0, bytes=-1)
    assert BatchArrivals(0).continues_ns(10, batch) == 10 + 5 * MS
    assert BatchArrivals(1).continues_ns(10, batch) == 10 + 5 * MS + handover_ns(19_000_000)
    assert BatchArrivals(1).continues_ns(10, end) == 10 + MS
    assert handover_ns(-1) == handover_ns(0) < handover_ns(19_000_000) < 2 * MS


def test_no_process_of_these_tests_is_left(others):
    gc.collect()
    children = set(psutil.Process().children()) - others
    workers = [each for each in children if "resource_tracker" not in " ".join(each.cmdline())]
    assert psutil.wait_procs(workers, timeout=5)[1] == []
