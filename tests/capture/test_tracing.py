"""The profiler within a recording: it goes on if it stopped for nothing, and leaves backward passes alone."""

import builtins
import importlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="recording needs PyTorch: pip install torch")

from torch.profiler import profile, record_function  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import gpulab  # noqa: E402
from gpulab.analysis.steps.detection import find_steps  # noqa: E402
from gpulab.capture.plan import RecordingLimits, RecordingPlan  # noqa: E402
from gpulab.capture.profiler import TraceWindow  # noqa: E402
from gpulab.capture.protection.event_budget import heap_bytes  # noqa: E402
from gpulab.capture.protection.main_thread import is_importing  # noqa: E402
from gpulab.capture.tracing import MAX_EVENTS, is_in_backward  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("nothing_left")


def update_in_backward(steps):
    """Train with one optimizer per parameter, each of which steps within the backward pass; return the losses."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(4)])
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    inputs, losses = torch.randn(8, 16), []
    for _ in range(steps):
        loss = model(inputs).square().mean()
        loss.backward()
        losses.append(loss.item())
    return losses


class SlowInBackward(torch.autograd.Function):
    """Spends nearly all of a step in Python code of a backward pass."""

    @staticmethod
    def forward(context, x):
        return x * 2

    @staticmethod
    def backward(context, gradient):
        for _ in range(300):
            gradient = gradient + 0
        return gradient


def custom_backward(steps):
    x, losses = torch.ones(4, requires_grad=True), []
    for _ in range(steps):
        loss = checkpoint(SlowInBackward.apply, x, use_reentrant=False).sum()
        loss.backward()
        losses.append(loss.item())
    return losses


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")  # of the test's profiler, before 2.13
@pytest.mark.parametrize("train", [update_in_backward, custom_backward])
def test_the_profiler_neither_starts_nor_stops_within_a_backward_pass(monkeypatch, train):
    steps, outside = 400, []
    for method in ("start", "stop"):
        original = getattr(profile, method)

        def checked(profiler, original=original):
            outside.append(not is_in_backward())
            return original(profiler)

        monkeypatch.setattr(profile, method, checked)
    expected = train(steps)
    with gpulab.profile("in backward") as session:
        assert train(steps) == expected
    assert len(outside) >= 2
    assert all(outside)
    assert len(session.run.event_rows) > 1000
    assert not torch.autograd._profiler_enabled()
    with profile() as own:
        train(2)
    assert len(own.profiler.kineto_results.events()) > 20, "a profiler of the program's own works afterwards"


@pytest.mark.skipif(heap_bytes() is None, reason="this C library does not tell the bytes in use")
@pytest.mark.parametrize("level", ["trace", "deep"])
def test_memory_of_the_program_is_not_taken_for_events(monkeypatch, level):
    monkeypatch.setitem(RecordingLimits.__init__.__kwdefaults__, "opening_timeout_ns", 10**12)  # however busy it is
    tensor = torch.ones(4)
    with gpulab.profile("a model", level=level) as session:
        weights = [torch.ones(16) for _ in range(30_000)] + [[0.0] * 99 for _ in range(30_000)]
        for _ in range(4 * MAX_EVENTS[level]):
            tensor.add_(1)
    assert len(weights) == 60_000
    assert len(session.run.event_rows) > MAX_EVENTS[level] / (4 if level == "trace" else 16)  # resumed only at "trace"


def test_the_opening_is_postponed_while_the_main_thread_imports(monkeypatch, tmp_path):
    postponed = threading.Semaphore(0)  # the package waits for that, however busy the machine is
    postpone = RecordingPlan.postpone
    monkeypatch.setattr(RecordingPlan, "postpone", lambda *each: (postpone(*each), postponed.release()))
    monkeypatch.setitem(RecordingLimits.__init__.__kwdefaults__, "opening_timeout_ns", 60 * 10**9)
    source = "def wait(): return all([postponed.acquire(timeout=30) for _ in range(3)])\nwas_postponed = wait()\n"
    (tmp_path / "a_slow_package.py").write_text(f"from builtins import postponed\n{source}")
    monkeypatch.setattr(builtins, "postponed", postponed, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with gpulab.profile("imports first") as session:
        package = importlib.import_module("a_slow_package")
        torch.ones(9).sum()
    assert package.was_postponed
    assert "aten::sum" in set(session.run.events["name"])


def test_an_import_is_known_as_one(monkeypatch, tmp_path):
    source = "from gpulab.capture.protection.main_thread import is_importing\nduring = is_importing()\n"
    (tmp_path / "a_package_that_asks.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.import_module("a_package_that_asks").during
    assert not is_importing()


@pytest.mark.night
@pytest.mark.parametrize("level", ["trace", "deep"])
def test_a_range_that_is_open_in_several_windows_does_not_crash_the_program(level):
    program = [sys.executable, "-m", "tests.support.spool.crossing_ranges", level]
    result = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout == "1800\n"


def test_ranges_work_as_before_after_a_recording():
    methods = record_function.__enter__, record_function.__exit__
    with record_function("outer"), gpulab.profile("inner"):
        left_open = record_function("left open").__enter__()
    assert (record_function.__enter__, record_function.__exit__) != methods, "until the last range ends"
    left_open.__exit__(None, None, None)
    assert (record_function.__enter__, record_function.__exit__) == methods


def test_stopping_makes_no_python_object_of_each_event(recwarn):
    window = TraceWindow(())
    window.start()
    torch.ones(3)
    assert window.stop()
    assert window._profile.profiler._function_events is None
    assert not [warning for warning in recwarn if "clears events" in str(warning.message)]


def test_events_are_counted_only_if_nothing_is_open():
    window = TraceWindow(())
    window.start()
    torch.ones(3)
    assert window.stop_quietly()
    assert window.count_events().number >= 2
    assert window.count_events().is_open == (torch.__version__ < "2.13"), "older versions do not tell"
    window = TraceWindow(())
    window.start()
    record = torch.ops.profiler._record_function_enter_new("an operator", None)
    torch.ones(3)
    assert window.stop_quietly()
    assert window.count_events().is_open
    torch.ops.profiler._record_function_exit._RecordFunction(record)


def deep_steps(count, after=lambda: None):
    """Steps of more events than a window may hold."""
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.001)
    for _ in range(count):
        values = weight
        for _ in range(3 * MAX_EVENTS["trace"] // 8):  # four events each
            values = values.neg()
        optimizer.zero_grad()
        values.sum().backward()
        optimizer.step()
    after()


def events_of(profiler):
    return len(profiler.profiler.kineto_results.events())


@pytest.fixture
def stops(monkeypatch):
    """The number of events of each profiler that stops."""
    counts, original = [], profile.stop

    def counted(profiler):
        original(profiler)
        counts.append(events_of(profiler))

    monkeypatch.setattr(profile, "stop", counted)
    return counts


@pytest.mark.night
def test_a_step_with_too_many_events_is_recorded_and_processed_after_the_loop(stops):
    in_loop = []
    with gpulab.profile("deep steps") as session:
        deep_steps(40, after=lambda: in_loop.extend(stops))
    run = session.run
    assert find_steps(run).interior.any()
    assert max(in_loop) < 2 * MAX_EVENTS["trace"]
    assert max(stops) == stops[-1] > MAX_EVENTS["trace"]
    assert len(stops) == len(in_loop) + 1
    assert find_steps(run).unprofiled.any()


@pytest.mark.night
def test_operators_are_observed_again_after_a_deferred_window():
    with pytest.raises(ZeroDivisionError), gpulab.profile("deep steps"):
        deep_steps(40, after=lambda: 1 / 0)
    with profile() as own:
        torch.ones(3).add_(1)
    assert events_of(own) >= 2


@pytest.mark.night
def test_a_profiler_of_the_program_records_after_a_deferred_window():
    counts = []

    def own_profiler():
        with profile() as own:
            torch.ones(3).add_(1)
        counts.append(events_of(own))

    with gpulab.profile("deep steps") as session:
        deep_steps(40, after=own_profiler)
    assert counts[0] >= 2
    assert find_steps(session.run).interior.any()
    assert not torch.autograd._profiler_enabled()


def test_operators_while_the_profiler_is_paused_are_no_events():
    window = TraceWindow(())
    window.start()
    torch.ones(3)
    with record_function("open"):
        window.pause()
        torch.zeros(3)
    assert window.stop()
    names = [event.name() for event in window._profile.profiler.kineto_results.events()]
    assert "aten::ones" in names
    assert "aten::zeros" not in names
    window.release()
