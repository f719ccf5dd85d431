"""The user's program ends as it would without gpulab: odd objects, signals, full disks, and loops without end."""

import errno
import tempfile
import threading
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="recording needs PyTorch: pip install torch")

from torch.utils.data import DataLoader, Dataset, Sampler  # noqa: E402

import gpulab  # noqa: E402
from gpulab.analysis.steps.detection import find_steps  # noqa: E402
from gpulab.capture import profiler  # noqa: E402
from gpulab.capture import session as session_module  # noqa: E402
from gpulab.capture.hooks.loader_hooks import StepMarks  # noqa: E402
from gpulab.capture.hooks.loader_settings import loader_settings  # noqa: E402
from gpulab.capture.hooks.mark_buffer import COLUMNS, MarkBuffer  # noqa: E402
from gpulab.capture.profiler import TraceWindow  # noqa: E402
from gpulab.capture.protection import event_budget, temporary_folder  # noqa: E402
from gpulab.capture.protection.event_budget import EventWatch, heap_bytes  # noqa: E402
from gpulab.capture.tracing import MAX_EVENTS  # noqa: E402
from gpulab.tables import MarkKind  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_left")
MS = 1_000_000


class Numbers(Dataset):
    def __init__(self, length=12):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full((2,), float(index))


class Batches(Sampler):
    """A batch sampler whose length fails, takes long, or makes no sense."""

    batch_size = 3

    def __init__(self, length):
        self.length, self.asked = length, 0

    def __iter__(self):
        return iter([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]])

    def __len__(self):
        self.asked += 1
        if isinstance(self.length, BaseException):
            raise self.length
        return self.length


class RaisingSize(Batches):
    @property
    def batch_size(self):
        raise RuntimeError("not before the first epoch")


def sums(loader, epochs=2):
    return [float(batch.sum()) for _ in range(epochs) for batch in loader]


def sampled(length):
    return DataLoader(Numbers(), batch_sampler=Batches(length))


# Objects of the user.


ERRORS = (NotImplementedError, RuntimeError, AttributeError, TypeError, StopIteration, SystemExit)
ODD_LENGTHS = [*(kind("no") for kind in ERRORS), -1, 2**80, 4]


@pytest.mark.parametrize(
    "length",
    ODD_LENGTHS,
    ids=repr,
)
def test_a_batch_sampler_may_have_any_length_or_none(length):
    expected = sums(sampled(length))
    with gpulab.profile("odd") as session:
        assert sums(sampled(length)) == expected
    assert len(find_steps(session.run).start_ns) >= 6
    assert session.run.loaders[0].batches == (4 if length == 4 else None)


def test_the_length_of_a_sampler_is_asked_for_once():
    loader = sampled(4)
    with gpulab.profile("once", level="sensors"):
        sums(loader, epochs=1)
    assert loader.batch_sampler.asked == 1


@pytest.mark.parametrize("size", [[1, 2], None, np.int64(3), "three", float("nan")], ids=repr)
def test_a_batch_size_may_be_anything(size):
    loader = sampled(4)
    loader.batch_sampler.batch_size = size
    with gpulab.profile("size", level="sensors") as session:
        assert len(sums(loader)) == 8
    assert session.run.loaders[0].batch_size == (3 if isinstance(size, np.int64) else None)


def test_a_property_that_raises_is_unknown():
    with gpulab.profile("size", level="sensors") as session:
        assert len(sums(DataLoader(Numbers(), batch_sampler=RaisingSize(4)))) == 8
    assert session.run.loaders[0].batch_size is None
    assert session.run.recording.left_out == tuple(
        gap for gap in session.run.recording.left_out if gap.what != "step marks"
    )


class Meta(type):
    @property
    def __name__(cls):
        raise RuntimeError("no name")


class OddNumbers(Numbers, metaclass=Meta):
    __hash__ = None

    def __eq__(self, other):
        raise RuntimeError("compared")

    def __bool__(self):
        raise RuntimeError("no truth")


class OddSGD(torch.optim.SGD):
    __hash__ = None

    def __eq__(self, other):
        raise RuntimeError("compared")

    def __bool__(self):
        raise RuntimeError("no truth")


def train_oddly():
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = OddSGD(model.parameters(), lr=0.1)
    for batch in DataLoader(OddNumbers(), batch_size=2):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    return model.weight.tolist()


def test_objects_without_hash_equality_truth_or_name_train_as_ever():
    expected = train_oddly()
    with gpulab.profile("odd") as session:
        assert train_oddly() == expected
    assert session.run.loaders[0].dataset == "OddNumbers"
    assert len(session.run.optimizers) == 1


def test_a_patch_of_the_user_over_ours_stays_and_ours_is_inactive():
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    original, calls = _BaseDataLoaderIter.__next__, []
    try:
        with gpulab.profile("patched", level="sensors") as session:
            ours = _BaseDataLoaderIter.__next__
            _BaseDataLoaderIter.__next__ = lambda self: (calls.append(1), ours(self))[1]
            sums(DataLoader(Numbers(), batch_size=3), epochs=1)
        steps = session.run.mark_rows
        assert _BaseDataLoaderIter.__next__ is not original
        before = len(calls)
        sums(DataLoader(Numbers(), batch_size=3), epochs=1)
        assert len(calls) > before
        assert len(session._marks.rows(0)) == len(steps)
    finally:
        _BaseDataLoaderIter.__next__ = original


class ReadOnlyError(Exception):
    def __setattr__(self, name, value):
        raise RuntimeError("read-only")


def test_an_exception_that_cannot_be_changed_is_raised_as_it_is():
    with pytest.raises(ReadOnlyError), gpulab.profile("read-only", level="sensors"):
        raise ReadOnlyError


class CountingMode(torch.overrides.TorchFunctionMode):
    def __init__(self):
        self.calls = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.calls += 1
        return function(*args, **(kwargs or {}))


def test_a_function_mode_of_the_user_does_not_see_our_calls():
    def calls():
        with CountingMode() as mode:
            train_oddly()
        return mode.calls

    expected = calls()
    with gpulab.profile("mode", level="sensors"):
        assert calls() == expected


def test_steps_of_another_thread_do_not_count():
    with gpulab.profile("threads") as session:
        thread = threading.Thread(target=lambda: [gpulab.step() for _ in range(20)])
        thread.start()
        thread.join()
    assert len(session.run.mark_rows) == 0
    assert not torch._C._autograd._profiler_enabled()


def test_where_no_thread_can_start_the_loop_is_recorded_without_sensors(monkeypatch):
    def fails(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fails)
    with gpulab.profile("alone") as session:
        assert len(sums(DataLoader(Numbers(48), batch_size=2))) == 48
    assert any("can't start new thread" in gap.why for gap in session.run.recording.left_out)
    assert len(session.run.mark_rows) >= 48


def test_time_functions_that_the_user_replaced_change_nothing(monkeypatch):
    with gpulab.profile("frozen", level="sensors") as session:
        monkeypatch.setattr(time, "time_ns", lambda: 1 / 0)
        result = sums(DataLoader(Numbers(48), batch_size=2))
        monkeypatch.undo()
    assert len(result) == 48
    assert len(session.run.mark_rows) >= 48


# Disks and descriptors.


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), FileNotFoundError("no usable folder")])
def test_a_disk_that_fails_costs_the_trace_only(monkeypatch, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(temporary_folder.tempfile, "TemporaryDirectory", fails)
    with gpulab.profile("full") as session:
        result = sums(DataLoader(Numbers(48), batch_size=2))
    assert len(result) == 48
    assert len(session.run.event_rows) == 0
    assert len(session.run.mark_rows) >= 48
    assert any(str(error) in gap.why for gap in session.run.recording.left_out)


def test_the_users_exception_is_raised_whatever_fails_in_us(monkeypatch):
    monkeypatch.setattr(session_module, "merge_traces", lambda *_: 1 / 0)
    with pytest.raises(KeyError, match="mine"), pytest.warns(UserWarning, match="was lost"), gpulab.profile("lost"):
        raise KeyError("mine")


def test_a_failure_of_the_profiler_turns_it_off_and_the_loop_goes_on(monkeypatch):
    stop = TraceWindow.stop

    def fails(window):
        if stop(window):
            raise RuntimeError("profiler broken")

    monkeypatch.setattr(TraceWindow, "stop", fails)
    with gpulab.profile("broken") as session:
        assert len(sums(DataLoader(Numbers(48), batch_size=2))) == 48
    assert any("profiler broken" in gap.why for gap in session.run.recording.left_out)
    assert len(session.run.mark_rows) >= 48


# Limits.


def test_marks_keep_the_first_and_the_latest_and_count_all():
    buffer = MarkBuffer(first=4, latest=3)
    for number in range(12):
        buffer.append((MarkKind.NEXT, number, number + 1, 0, 0, True, 0, 0, 0, -1))
    rows = buffer.rows(0)
    assert rows["start_ns"].tolist() == [0, 1, 2, 3, 9, 10, 11]
    assert (buffer.count, buffer.missing, buffer.missing_span_ns) == (12, 5, (4, 9))
    assert [mark[1] for mark in buffer.since(10)] == [10, 11]
    assert buffer._marks.itemsize * len(buffer._marks) == 7 * COLUMNS * 8


def test_steps_of_missing_marks_are_not_measured(monkeypatch):
    monkeypatch.setattr(session_module, "StepMarks", lambda *args, **more: small_marks(*args, **more))
    with gpulab.profile("long", level="sensors") as session:
        sums(DataLoader(Numbers(400), batch_size=2), epochs=1)
    detected, (hole,) = find_steps(session.run), session.run.recording.pauses_ns
    start_ns, end_ns = detected.start_ns[detected.unprofiled], detected.end_ns[detected.unprofiled]
    assert len(start_ns) > 10
    assert not ((start_ns < hole[1]) & (end_ns > hole[0])).any(), "no step reaches into the missing marks"
    assert any("step marks" in gap.what for gap in session.run.recording.left_out)


def small_marks(*args, **more):
    marks = StepMarks(*args, **more)
    marks.buffer = MarkBuffer(first=30, latest=30)
    return marks


@pytest.mark.skipif(heap_bytes() is None, reason="this C library does not tell the bytes in use")
@pytest.mark.parametrize("level", [(), ("with_stack", "record_shapes", "profile_memory")], ids=["trace", "deep"])
def test_events_are_counted_while_they_are_recorded(level, monkeypatch):
    monkeypatch.setattr(event_budget, "RECORDED_READ_TIMES", 0)  # this process may have a large heap
    tensor, watch = torch.ones(4), EventWatch(lambda: None)
    window = profiler.TraceWindow(level)
    window.start()
    watch.profiler_started(1_000_000)
    for _ in range(4000):
        tensor.add_(1)
    estimate = watch.step_started()
    window.stop()
    recorded = len(window._profile.profiler.kineto_results.events())
    assert 0.6 * recorded < estimate < 2 * recorded


@pytest.mark.parametrize("problem", [None, OSError("disk full"), RuntimeError("cannot export")], ids=str)
def test_events_of_a_window_are_on_disk_and_freed_or_stay_in_memory(monkeypatch, problem, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("gpulab.capture.trace_windows.SLOW_STORE_NS", 10**12)  # whatever this disk does
    export = torch.profiler.profile.export_chrome_trace
    failures = [problem] if problem else []

    def exported(profile, path):
        if failures:
            raise failures.pop()
        export(profile, path)

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", exported)
    tensor = torch.ones(4)
    with gpulab.profile("stored") as session:
        for _ in DataLoader(Numbers(60), batch_size=1):
            tensor.add_(1)
        until_s = time.monotonic() + 60  # the events are written some time after the profiler has stopped
        while failures or (problem is None and session._tracing.windows.is_latest_in_memory):
            assert time.monotonic() < until_s
        on_disk = [window.is_stored for window in session._tracing.windows.windows]
    assert len(on_disk) >= 1
    assert all(stored == (problem is None) for stored in on_disk)
    assert (session.run.events["name"] == "aten::add_").sum() > 10
    assert not session.run.recording.left_out or all(
        "operators" not in gap.what for gap in session.run.recording.left_out
    )
    assert list(tmp_path.glob("gpulab-*")) == []


@pytest.mark.skipif(heap_bytes() is None, reason="this C library does not tell the bytes in use")
@pytest.mark.full
def test_tensors_in_the_heap_are_no_events():
    def work():
        for _ in range(6):
            held = [torch.ones(300_000) for _ in range(60)]  # 72 MB, in the heap once glibc has seen such blocks freed
            time.sleep(0.06)
            del held

    work()
    with gpulab.profile("tensors") as session:
        for _ in DataLoader(Numbers(12), batch_size=1):
            work()
    assert not session._tracing.plan.is_cut
    assert (session.run.events["name"] == "aten::ones").sum() >= 3 * 360, "three whole steps are recorded"


@pytest.mark.full
@pytest.mark.skipif(heap_bytes() is None, reason="this C library does not tell the bytes in use")
@pytest.mark.parametrize("level", ["trace", "deep"])
def test_a_step_of_any_size_is_cut_at_the_limit(level):
    tensor = torch.ones(4)
    with gpulab.profile("huge", level=level) as session:
        for _ in DataLoader(Numbers(12), batch_size=1):
            for _ in range(20_000):
                tensor.add_(1)
    # Each of two windows is as much too long as is recorded between two checks.
    assert len(session.run.event_rows) < 12 * MAX_EVENTS[level]
    assert any("few steps" in gap.what for gap in session.run.recording.left_out)


def test_settings_are_plain_values():
    settings = loader_settings(iter(sampled(4)))
    assert hash(settings) == hash(loader_settings(iter(sampled(4))))
    assert event_budget.BYTES_PER_EVENT > 0
