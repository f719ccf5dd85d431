"""How often DataLoader workers are started, and how long that takes the main process."""

import inspect
import multiprocessing

import pytest

import gpulab

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from torch.utils.data import dataloader as pytorch  # noqa: E402


def dataset():
    return TensorDataset(torch.arange(24.0))


def iterate(*loaders, passes=3):
    for _ in range(passes):
        for loader in loaders:
            for _ in loader:
                pass


def recorded(*loaders, passes=3):
    with gpulab.profile("starts", level="sensors") as session:
        iterate(*loaders, passes=passes)
    return session.run.loaders


@pytest.mark.parametrize(("persistent", "starts"), [(False, 3), (True, 1)])
def test_workers_start_once_per_pass_unless_they_are_persistent(persistent, starts):
    (loader,) = recorded(DataLoader(dataset(), batch_size=4, num_workers=1, persistent_workers=persistent))
    assert loader.worker_starts == starts
    assert loader.worker_start_ns > 0


def test_each_loader_has_its_own_starts():
    train, unused, validation = (DataLoader(dataset(), batch_size=size, num_workers=1) for size in (4, 6, 8))
    with gpulab.profile("starts", level="sensors") as session:
        iterate(train, passes=2)
        iter(unused)
        iterate(validation, passes=1)
    assert [loader.worker_starts for loader in session.run.loaders] == [2, 1]


def test_loaders_without_workers_start_none():
    (loader,) = recorded(DataLoader(dataset(), batch_size=4))
    assert (loader.worker_starts, loader.worker_start_ns) == (None, None)


def test_starting_takes_most_of_the_time_of_a_slow_context():
    class Slow(multiprocessing.get_context("fork").Process):
        def start(self):
            pause()
            super().start()

    import time

    def pause():
        time.sleep(0.05)

    context = multiprocessing.get_context("fork")
    loader = DataLoader(dataset(), batch_size=4, num_workers=2, multiprocessing_context=context)
    original, context.Process = context.Process, Slow
    try:
        (facts,) = recorded(loader)
    finally:
        context.Process = original
    assert facts.worker_start_ns >= 100e6


def test_no_frame_is_added_to_the_stack_of_a_worker():
    modules = torch.zeros(8).share_memory_()

    def count_frames(worker):
        modules[worker] = sum("gpulab" in frame.f_globals.get("__name__", "") for frame, *_ in inspect.stack())

    recorded(DataLoader(dataset(), batch_size=4, num_workers=1, worker_init_fn=count_frames))
    watched = float(modules[0])
    iterate(DataLoader(dataset(), batch_size=4, num_workers=1, worker_init_fn=count_frames))
    assert watched == float(modules[0])


def test_workers_that_cannot_start_raise_their_own_error():
    class Failing(multiprocessing.get_context("fork").Process):
        def start(self):
            raise OSError("no more processes")

    context = multiprocessing.get_context("fork")
    loader = DataLoader(dataset(), batch_size=4, num_workers=1, multiprocessing_context=context)
    original, context.Process = context.Process, Failing
    try:
        with pytest.raises(OSError, match="no more processes"), gpulab.profile("starts", level="sensors"):
            iterate(loader)
    finally:
        context.Process = original


def test_pytorch_is_restored():
    before = pytorch._BaseDataLoaderIter.__init__, pytorch._MultiProcessingDataLoaderIter._reset
    recorded(DataLoader(dataset(), batch_size=4, num_workers=1))
    assert (pytorch._BaseDataLoaderIter.__init__, pytorch._MultiProcessingDataLoaderIter._reset) == before
