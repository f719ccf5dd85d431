"""Loading and waiting times of batches, measured by the workers. PyTorch and the errors of datasets do not change."""

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

import gpulab

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset, IterableDataset  # noqa: E402
from torch.utils.data._utils.fetch import _MapDatasetFetcher  # noqa: E402
from torch.utils.data._utils.worker import ManagerWatchdog  # noqa: E402

from gpulab.capture.hooks.workers import fetch_times  # noqa: E402
from gpulab.capture.hooks.workers.fetch_times import FetchTimes  # noqa: E402
from gpulab.capture.protection.guard import Guard  # noqa: E402

SLEEP_S = COMPUTED_S = 0.002
BATCH = 8


class Quick(Dataset):
    def __len__(self):
        return 6 * BATCH

    def __getitem__(self, index):
        return torch.full((4,), float(index))


class Sleeping(Quick):
    def __getitem__(self, index):
        time.sleep(SLEEP_S)
        return super().__getitem__(index)


class Computing(Quick):
    def __getitem__(self, index):
        end_s = time.thread_time() + COMPUTED_S
        while time.thread_time() < end_s:
            pass
        return super().__getitem__(index)


class Broken(Quick):
    def __getitem__(self, index):
        raise LookupError("no sample")


class Stream(IterableDataset):
    def __iter__(self):
        for index in range(5 * BATCH):
            time.sleep(SLEEP_S)
            yield torch.full((4,), float(index))


def recorded_loaders(*datasets, workers=2, epochs=1):
    loaders = [DataLoader(dataset, batch_size=BATCH, num_workers=workers) for dataset in datasets]
    with gpulab.profile("fetches", level="sensors") as session:
        for loader in loaders:
            for _ in range(epochs):
                for _ in loader:
                    pass
    return session.run.loaders


@pytest.mark.parametrize("dataset", [Sleeping(), Stream()], ids=["map-style", "iterable"])
def test_time_in_which_samples_sleep_counts_as_waiting(dataset):
    (loader,) = recorded_loaders(dataset, epochs=2)
    # An iterable dataset is asked once more at its end, which counts as one of six batches.
    assert loader.worker_batch_ns >= loader.worker_wait_ns >= 0.8 * BATCH * SLEEP_S * 1e9


def test_each_dataset_has_its_own_times():
    sleeping, quick = recorded_loaders(Sleeping(), Quick())
    assert sleeping.worker_wait_ns >= 0.9 * BATCH * SLEEP_S * 1e9
    assert 0 <= quick.worker_wait_ns <= quick.worker_batch_ns


def test_without_workers_there_are_no_times():
    (loader,) = recorded_loaders(Sleeping(), workers=0)
    assert loader.worker_batch_ns is None
    assert loader.worker_wait_ns is None


def test_a_loader_whose_workers_started_before_has_no_times():
    loader = DataLoader(Quick(), batch_size=BATCH, num_workers=1)
    batches = iter(loader)
    with gpulab.profile("late", level="sensors") as session:
        assert len(list(batches)) == 6
    assert session.run.loaders[0].worker_batch_ns is None


def test_an_error_in_a_dataset_reads_as_without_gpulab():
    def message():
        with pytest.raises(LookupError) as caught:
            list(DataLoader(Broken(), batch_size=BATCH, num_workers=1))
        return str(caught.value)

    expected = message()
    with gpulab.profile("broken", level="sensors"):
        assert message() == expected


def test_pytorch_is_restored():
    before = _MapDatasetFetcher.__dict__["fetch"], ManagerWatchdog.__dict__["is_alive"]
    recorded_loaders(Quick())
    assert (_MapDatasetFetcher.__dict__["fetch"], ManagerWatchdog.__dict__["is_alive"]) == before


def test_a_patch_of_the_user_stays(monkeypatch):
    times = FetchTimes(Guard())
    times.install()
    mine = lambda self, index: [index]  # noqa: E731
    monkeypatch.setattr(_MapDatasetFetcher, "fetch", mine)
    times.remove()
    assert _MapDatasetFetcher.__dict__["fetch"] is mine
    monkeypatch.undo()
    del times


def test_times_are_kept_with_the_run(tmp_path):
    (loader,) = recorded_loaders(Sleeping())
    run = gpulab.runs["fetches"]
    gpulab.save(run, tmp_path / "run.gpulab")
    assert gpulab.load(tmp_path / "run.gpulab").loaders == (loader,)
    assert replace(loader, worker_wait_ns=-1).worker_wait_ns is None


def test_a_failure_of_ours_does_not_reach_the_worker(monkeypatch):
    monkeypatch.setattr("gpulab.capture.hooks.workers.fetch_times._blocked_count", lambda: 1 // 0)
    (loader,) = recorded_loaders(Quick())
    assert loader.worker_batch_ns is None


def test_waiting_for_a_core_is_no_wait_for_data(monkeypatch):
    """Of 1 s, the worker computes for 0.3 s and waits 0.5 s for a core, so it waits 0.2 s for something else."""
    readings = {"perf_counter": [0.0, 1.0], "thread_time": [0.0, 0.3]}
    for name, values in readings.items():
        monkeypatch.setattr(fetch_times.time, name, iter(values).__next__)
    monkeypatch.setattr(fetch_times, "_queued_s", iter([0.0, 0.5]).__next__)
    monkeypatch.setattr(fetch_times, "_blocked_count", iter([0, 1]).__next__)
    numbers = memoryview(bytearray(8 * fetch_times._SLOTS * fetch_times._FIELDS)).cast("d")
    clock = fetch_times._BatchClock(numbers)
    clock.begin(SimpleNamespace(dataset=None))
    clock.end(None)
    monkeypatch.undo()
    assert [value for value in numbers if value][-3:] == pytest.approx([1.0, 0.2, 0.3])


def test_workers_measure_their_cpu_time():
    sleeping, computing = recorded_loaders(Sleeping(), Computing())
    assert sleeping.worker_batch_cpu_ns < 0.5 * sleeping.worker_batch_ns
    assert computing.worker_batch_cpu_ns >= BATCH * COMPUTED_S * 1e9
