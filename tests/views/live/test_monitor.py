"""The monitor: it records in the background, pauses for other recordings, cleans up, and leaves a run."""

from __future__ import annotations

import gc
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset

import gpulab
from gpulab.capture.live.loop_activity import STOPPED_AFTER_NS, ActivityTracker
from gpulab.capture.live.snapshot import WorkerState
from gpulab.capture.live.workers import WORKER_STATE_INTERVAL_NS, WorkerStates
from gpulab.errors import CaptureError
from gpulab.run import Run
from gpulab.tables import MarkKind
from gpulab.views.live.alert import IdleGpuDetector
from gpulab.views.live.html_panel import panel_html, sparkline
from gpulab.views.live.monitor import Monitor, current, monitor
from gpulab.views.live.panel_content import MANY_WORKERS, PanelContentBuilder
from tests.support.front_end.kernel import ROOT, Kernel, Reply
from tests.support.front_end.live_panel import Front, gpu, live_state
from tests.support.nvml_standin import build, installed

SECOND_NS = 1_000_000_000


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def start_monitor() -> Iterator[Callable[..., Monitor]]:
    """Start monitors; a monitor that a test leaves running is stopped at its end."""
    yield monitor
    if (running := current()) is not None:
        running.abandon()


def train(batches: int = 20, data: TensorDataset | None = None) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data or TensorDataset(torch.ones(8 * batches, 4)), batch_size=8)
    for (x,), _ in zip(loader, range(batches), strict=False):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()


def optimizer_steps(run: Run) -> int:
    """Count the optimizer steps in a run."""
    return int((run.mark_rows["kind"] == MarkKind.OPTIMIZER).sum())


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def samplers() -> int:
    return sum(thread.name == "gpulab-sampler" for thread in threading.enumerate())


# Recording.


def test_a_monitor_records_steps_and_sensors_across_blocks_and_leaves_a_run(start_monitor, nothing_left):
    running = start_monitor("across", every=0.1)
    data = TensorDataset(torch.ones(120, 4))
    train(15, data)
    train(10, data)
    run = running.stop()
    assert gpulab.runs["across"] is run
    assert (run.recording.level, run.outcome, len(run.event_rows)) == ("sensors", "ok", 0)
    assert optimizer_steps(run) == 25
    assert len(run.host_rows) >= 1
    assert len(run.loaders) >= 1
    report = repr(gpulab.report(run))
    assert "Sensor readings" in report
    assert "detected from the DataLoader" in " ".join(report.split())


def test_without_any_step_the_report_shows_the_sensors(start_monitor):
    running = start_monitor("idle", every=0.1)
    until(lambda: running.content.elapsed_s > 0.3)
    report = repr(gpulab.report(running.stop()))
    assert "Sensor readings" in report
    assert "CPU, all cores" in report


def test_it_ends_with_its_block_and_records_the_exception(nothing_left):
    running = monitor("block", every=0.1)
    with pytest.raises(ZeroDivisionError), running:
        train(1 // 0)
    assert running.run.outcome == "ZeroDivisionError"
    assert current() is None


def test_stopping_twice_gives_the_same_run(start_monitor):
    running = start_monitor("twice", every=0.1)
    assert running.stop() is running.stop()


def test_calls_of_gpulab_step_are_recorded_as_marks(start_monitor):
    running = start_monitor("explicit", every=0.1)
    for _ in range(5):
        gpulab.step()
    assert len(running.stop().mark_rows) == 5
    gpulab.step()  # no effect after the end


def test_stopped_in_another_thread_it_returns_its_run_and_removes_its_hooks_soon(start_monitor, nothing_left):
    running = start_monitor("elsewhere", every=0.1)
    train(5)
    thread = threading.Thread(target=running.stop)
    thread.start()
    thread.join()
    assert optimizer_steps(running.run) == 5
    train(5)  # the main thread removes the hooks at its next step
    until(lambda: optimizers._global_optimizer_post_hooks == {})
    with start_monitor("after", every=0.1) as after:
        train(4)
    assert optimizer_steps(after.run) == 4


def test_hooks_are_not_removed_while_an_optimizer_calls_them(start_monitor, nothing_left):
    """A dictionary that shrinks during iteration raises in the user's step, because more hooks are to be called."""
    running = start_monitor("amid", every=0.1)
    calls = []

    def stop_in_thread(*_: object) -> None:
        calls.append(None)
        thread = threading.Thread(target=running.stop)
        thread.start()
        thread.join()
        sum(range(1000))  # instructions between which a pending call would run

    handles = [optimizers.register_optimizer_step_post_hook(hook) for hook in (stop_in_thread, lambda *_: None)]
    try:
        train(3)
    finally:
        for handle in handles:
            handle.remove()
    assert len(calls) == 3
    until(lambda: not optimizers._global_optimizer_post_hooks)


@pytest.fixture
def eight_gpus(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The NVML stand-in with eight GPUs."""
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    for standin in installed(build(tmp_path_factory.mktemp("nvml")), monkeypatch):
        monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        standin.reset(8)
        yield


def test_every_gpu_is_shown_and_recorded_also_after_a_pause(eight_gpus, start_monitor):
    running = start_monitor("eight", every=0.1)
    train(4)
    until(lambda: len(running.content.bars) == 2)
    tiles = {tile.label: tile.value for tile in running.content.tiles if tile.group == "GPUs"}
    assert tiles == {f"GPU {index}": f"{61 + 3 * index} %" for index in range(8)}
    with gpulab.profile("inner", level="sensors"):
        pass
    before = running.content.elapsed_s
    until(lambda: running.content.elapsed_s > before + 0.3)
    run = running.stop()
    [pause] = run.recording.pauses_ns
    later = run.gpu_rows.select(run.gpu_rows["at_ns"] > pause[1])
    assert set(later["device"].tolist()) == set(range(8))


# One recording at a time.


def test_a_second_monitor_is_refused_with_the_name_of_the_first(start_monitor):
    start_monitor("first", every=0.1)
    with pytest.raises(CaptureError, match=r"'first'[\s\S]*--stop"):
        monitor("second")
    assert current().name == "first"


def test_it_has_no_thread_and_no_hook_while_a_block_is_profiled(start_monitor, nothing_left):
    running = start_monitor("behind", every=0.1)
    train(6)
    callbacks = len(gc.callbacks)
    with gpulab.profile("inner", level="sensors") as session:
        assert samplers() == 1, "the sampler of the profiled block"
        assert len(optimizers._global_optimizer_post_hooks) == 1
        assert len(gc.callbacks) == callbacks
        assert re.match(r"paused.*\binner\b", running.content.phase)
        train(9)
    assert samplers() == 1
    train(6)
    run = running.stop()
    assert optimizer_steps(session.run) == 9
    assert optimizer_steps(run) == 12, "steps of the other recording are not counted twice"
    [pause] = run.recording.pauses_ns
    assert not any(pause[0] < at < pause[1] for at in run.host_rows["at_ns"])
    [gap] = [gap for gap in run.recording.left_out if "inner" in gap.what]
    assert gap.why


def test_the_monitor_goes_on_after_a_recording_fails_to_start(start_monitor):
    running = start_monitor("steady", every=0.1)
    with gpulab.profile("outer", level="sensors"), pytest.raises(CaptureError):
        gpulab.profile("inner").__enter__()
    train(4)
    assert optimizer_steps(running.stop()) == 4


def test_a_monitor_does_not_start_while_something_is_recorded():
    with gpulab.profile("outer", level="sensors"), pytest.raises(CaptureError, match="'outer'"):
        monitor("late")
    assert current() is None


def test_a_viewer_that_fails_disturbs_neither_the_other_recording_nor_the_monitor(start_monitor):
    class Broken:
        def draw(self, glance: object) -> None:
            raise ValueError("no screen")

        def end(self, result: object) -> None:
            pass

    running = start_monitor("broken", every=0.1)
    running.show(Broken())
    with gpulab.profile("inner", level="sensors"):
        pass
    assert any("no screen" in gap.why for gap in running.stop().recording.left_out)


@pytest.mark.parametrize(("parameters", "number"), [({"every": 0}, "0 s"), ({"threshold": 50}, "50")])
def test_an_invalid_value_is_refused(parameters, number):
    with pytest.raises(CaptureError, match=rf"\b{number}\b"):
        monitor(**parameters)
    assert current() is None


def test_its_repr_is_one_line(start_monitor):
    running = start_monitor("line", every=0.1)
    train(3)
    until(lambda: repr(running).startswith("gpulab monitor line: sensors only, step "))
    assert "\n" not in repr(running)
    running.stop()
    assert "\n" not in repr(running)


SCRIPTS = {
    "left running": "m = gpulab.views.live.monitor.monitor(every=0.1); time.sleep(0.3)",
    "torch comes later": "m = gpulab.views.live.monitor.monitor(every=0.1); time.sleep(0.2)\n"
    "assert 'torch' not in sys.modules\nimport torch; time.sleep(0.5)\n"
    "p = torch.nn.Parameter(torch.ones(1)); o = torch.optim.SGD([p], lr=0.1)\n"
    "for _ in range(7):\n    p.sum().backward(); o.step(); time.sleep(0.01)\n"
    "r = m.stop(); assert (r.mark_rows['kind'] == 1).sum() == 7, r.marks",
    "no torch": "m = gpulab.views.live.monitor.monitor(every=0.1); time.sleep(0.2); r = m.stop()\n"
    "assert 'torch' not in sys.modules\nassert any('PyTorch was not imported' in g.why for g in r.recording.left_out)",
}


@pytest.mark.full
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_in_a_separate_process_it_ends_cleanly_and_prints_nothing(script, tmp_path):
    code = "import sys, time, gpulab, importlib; sys.modules and importlib.import_module('gpulab.views.live.monitor')\n"
    code += "import gpulab.views; gpulab.views.live.monitor = sys.modules['gpulab.views.live.monitor']\n" + script
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={**__import__("os").environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")


# The pulse: whether the loop runs, and whether it waits for data.


class FakeMarks:
    """The marks that Pulse reads."""

    def __init__(self, **values: Any) -> None:
        self.first_mark_ns: int | None = None
        self.last_mark_ns: int | None = None
        self.steps = self.loader_wait_ns = 0
        self.loaders: list[object] = [object()]
        self.thread = -1
        vars(self).update(values)

    def step(self, at_ns: int, loader_wait_ns: int) -> None:
        self.first_mark_ns = at_ns if self.first_mark_ns is None else self.first_mark_ns
        self.last_mark_ns, self.steps, self.loader_wait_ns = at_ns, self.steps + 1, self.loader_wait_ns + loader_wait_ns


def last_beat(*, until_s: float, stops_s: float = 1e9, goes_on_s: float = 1e9, busy: float = 0.25) -> Any:
    """Sample a loop ten times a second; it makes ten steps a second and waits for data 30 of every 100 ms."""
    pulse, marks, beat = ActivityTracker(), FakeMarks(), None
    for tick in range(1, round(until_s * 10) + 1):
        at_s = tick / 10
        working = at_s <= stops_s or at_s >= goes_on_s
        if working:
            marks.step(round(at_s * SECOND_NS), 30_000_000)
        readings = [gpu(util_frac=busy if working else 0.0), gpu(util_frac=0.0)]
        beat = pulse.update(round(at_s * SECOND_NS), marks, readings)
    return beat


def test_before_the_first_step_all_shares_are_unknown():
    beat = ActivityTracker().update(SECOND_NS, FakeMarks(), [gpu()])
    assert (beat.running, beat.waiting_frac, beat.gpu_busy_frac) == (False, None, None)


def test_waiting_is_a_share_of_the_time_of_the_loop():
    beat = last_beat(until_s=30)
    assert beat.running
    assert beat.waiting_frac == pytest.approx(0.3, abs=0.01)
    assert beat.recent_waiting_frac == pytest.approx(0.3, abs=0.01)


def test_time_between_two_cells_does_not_count_as_time_of_the_loop():
    silent = last_beat(until_s=600, stops_s=30)
    assert not silent.running
    assert silent.waiting_frac == pytest.approx(0.3, abs=0.01)
    again = last_beat(until_s=630, stops_s=30, goes_on_s=600)
    assert again.running
    assert again.waiting_frac == pytest.approx(0.3, abs=0.01)
    assert again.gpu_busy_frac == pytest.approx(0.25, abs=0.03)


def test_only_gpus_that_work_while_the_loop_runs_count_as_used():
    assert last_beat(until_s=10).used_gpus == (0,)
    assert last_beat(until_s=10, busy=0.0).used_gpus == (0, 1), "where none works, all are idle"


def test_an_ongoing_wait_is_counted_before_it_ends():
    """Marks count a wait when it ends; a DataLoader that hangs must not look like a loop that computes."""
    hangs, go = threading.Event(), threading.Event()

    class Hanging(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            if index == 4:
                hangs.set()
                assert go.wait(20)
            return super().__getitem__(index)

    waiting_fracs = []

    def on_tick(live: Any) -> None:
        if hangs.is_set():
            waiting_fracs.append(live.waiting_frac)
            if len(waiting_fracs) >= 15:
                go.set()

    with gpulab.profile("hang", level="sensors", on_tick=on_tick):
        for _ in DataLoader(Hanging(torch.ones(6, 1)), batch_size=1):
            pass
    assert waiting_fracs[-1] > 0.8


def test_a_loop_with_slow_steps_counts_as_running():
    pulse, marks = ActivityTracker(), FakeMarks()
    for second in range(1, 41):
        if second % 4 == 1:
            marks.step(second * SECOND_NS, 0)
        running = pulse.update(second * SECOND_NS, marks, []).running
        assert running
    assert STOPPED_AFTER_NS == 5 * SECOND_NS


# The current state of the workers.


def test_a_busy_worker_has_a_higher_load_than_a_sleeping_one():
    spin = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        workers, at_ns = WorkerStates(), time.monotonic_ns()
        assert [each.load_frac for each in workers.read(at_ns, [spin.pid, sleeper.pid])] == [None, None]
        time.sleep(1)
        busy, idle = workers.read(time.monotonic_ns(), [spin.pid, sleeper.pid])
        assert busy.load_frac > idle.load_frac
        assert idle.load_frac < 0.5
        assert idle.blocked in (False, None)
        sleeper.kill()
        sleeper.wait()
        time.sleep(WORKER_STATE_INTERVAL_NS / 1e9)
        assert len(workers.read(time.monotonic_ns(), [spin.pid, sleeper.pid])) == 1, "a dead worker is left out"
    finally:
        spin.kill()
        sleeper.kill()
        spin.wait()


# The alert.


def alert_texts(utils: list[float | None], every_s: float = 0.5, **state: Any) -> list[str]:
    """Return the alert after each reading of one GPU; "" for no alert."""
    watcher = IdleGpuDetector()
    texts = []
    for number, util in enumerate(utils):
        values = {"running": True, "recent_waiting_frac": 0.71, "used_gpus": (0,), **state}
        alert = watcher.update(live_state(elapsed_s=number * every_s, gpus=(gpu(util_frac=util),), **values))
        texts.append(alert.text if alert else "")
    return texts


def test_ten_seconds_below_half_utilisation_raise_an_alert_with_the_waiting_time():
    texts = alert_texts([0.2] * 25)
    assert texts[:20] == [""] * 20
    for number in ("50 %", "12 s", "71 %"):
        assert number in texts[24]
    assert "cell line 7" not in texts[24]


def test_the_alert_names_the_most_frequent_line_if_the_loop_does_not_wait():
    *_, text = alert_texts([0.2] * 25, recent_waiting_frac=0.02)
    assert " 2 %" in text
    assert text.endswith("train (cell line 7)")
    *_, text = alert_texts([0.2] * 25, recent_waiting_frac=None)
    assert text.count("%") == 1, "no share of waiting"
    assert text.endswith("train (cell line 7)")


@pytest.mark.parametrize(
    ("utils", "state"),
    [
        ([0.2] * 15 + [0.9] * 5 + [0.2] * 15, {}),
        ([0.2, 0.9] * 30, {}),
        ([0.2] * 40, {"running": False}),
        ([0.2] * 40, {"steps": 1}),
        ([None] * 40, {}),
        ([0.2] * 15 + [None] + [0.2] * 15, {}),
        ([0.2] * 40, {"used_gpus": ()}),
    ],
    ids=["it recovers", "it alternates", "no loop runs", "one step", "not measured", "a gap", "not used"],
)
def test_there_is_no_alert_without_ten_seconds_of_low_utilisation(utils, state):
    assert set(alert_texts(utils, **state)) == {""}


def test_the_announcement_is_constant_during_an_episode_while_the_text_counts_seconds():
    glances = PanelContentBuilder("r")
    announcements, texts = [], []
    for number, util in enumerate([0.2] * 30 + [0.9] * 10 + [0.1] * 30):
        state = live_state(elapsed_s=number / 2, gpus=(gpu(util_frac=util),), running=True, used_gpus=(0,))
        glance = glances.build(state)
        announcements.append(glance.alert_announcement)
        texts.append(glance.alert)
    changes = [now for before, now in zip(["", *announcements], announcements, strict=False) if now and now != before]
    assert len(changes) == 2
    assert len(set(filter(None, texts))) > 4


def test_the_alert_names_the_idle_gpus():
    watcher = IdleGpuDetector()
    gpus = [gpu(util_frac=util) for util in (0.9, 0.1, 0.9, 0.1)]
    for number in range(25):
        state = live_state(elapsed_s=number / 2, gpus=tuple(gpus), running=True, used_gpus=(0, 1, 2, 3))
        alert = watcher.update(state)
    assert alert.text.startswith("GPUs 1 and 3 ")
    assert alert.gpus == (1, 3)


# Content of the panel.


def test_the_shares_of_a_bar_sum_to_one_and_its_note_defines_the_measurement():
    glance = PanelContentBuilder("r").build(live_state(gpus=(gpu(), gpu()), used_gpus=(1,), gpu_busy_frac=0.34))
    loop, device = glance.bars
    assert [sum(share.frac for share in bar.shares) for bar in (loop, device)] == [1, 1]
    assert re.findall(r"\d+ %", loop.summary) == ["41 %", "59 %"]
    assert (device.title, device.summary) == ("GPU (1 of 2 GPUs)", "busy 34 %, idle 66 %")
    assert "driver" in device.note
    assert PanelContentBuilder("r").build(live_state(waiting_frac=None)).bars == (), "no bar without a measurement"


def test_every_point_has_a_phase_and_the_legend_lists_the_phases_that_occur():
    glances = PanelContentBuilder("r")
    phases = ["waiting for the first step", "warming up", "recording", "enough steps recorded; the cell runs on"]
    for number, phase in enumerate(phases):
        glance = glances.build(live_state(phase=phase, elapsed_s=number))
    assert glance.phases == "owrs"
    assert [letter for letter, _ in glance.legend] == ["o", "w", "r", "s"]
    assert glance.span == "last 3 s"


def test_each_worker_has_a_tile_that_marks_a_wait_for_storage():
    workers = (WorkerState(load_frac=0.93, blocked=False), WorkerState(load_frac=0.02, blocked=True))
    first, second = PanelContentBuilder("r").build(live_state(worker_states=workers)).tiles[-2:]
    assert (first.label, first.value, first.mark) == ("worker 0", "93 %", "")
    assert (second.label, second.value, second.mark) == ("worker 1", "2 %", "blocked")


def test_the_sparkline_of_an_absent_worker_has_a_gap():
    glances, one_worker = PanelContentBuilder("r"), (WorkerState(load_frac=0.5, blocked=False),)
    for workers in (one_worker, (), one_worker):
        glance = glances.build(live_state(worker_states=workers))
    assert glance.tiles[-1].trail == (50, None, 50)


def test_many_workers_share_a_tile():
    many = tuple(WorkerState(load_frac=0.5, blocked=index == 3) for index in range(MANY_WORKERS + 1))
    tile = PanelContentBuilder("r").build(live_state(worker_states=many)).tiles[-1]
    assert (tile.label, tile.value, tile.note) == ("17 workers", "8.5 cores", "1 blocked on storage")
    assert len(tile.bars) == 17


def test_a_worker_with_unknown_load_is_not_shown_as_idle():
    workers = (WorkerState(load_frac=None, blocked=None),)
    tile = PanelContentBuilder("r").build(live_state(worker_states=workers)).tiles[-1]
    assert (tile.value, tile.trail, tile.frac) == ("not measured", (None,), None)


def test_the_text_sparkline_shows_gaps_and_at_most_28_points():
    assert sparkline((0, 50, 100, None)) == "▁▅█\u00a0"
    assert len(sparkline(tuple(range(100)))) <= 28
    assert sparkline((100,) * 100)[-1] == "█"


def test_the_html_panel_contains_bars_alert_workers_phases_and_the_stop_hint():
    glances = PanelContentBuilder("r", stop="to stop: %gpumonitor --stop")
    for number in range(25):
        glance = glances.build(
            live_state(
                elapsed_s=number,
                gpus=(gpu(util_frac=0.1),),
                running=True,
                used_gpus=(0,),
                gpu_busy_frac=0.1,
                worker_states=(WorkerState(load_frac=0.9, blocked=True),),
            )
        )
    html = panel_html(glance)
    for text in (glance.bars[0].summary, "busy 10 %", glance.alert, "blocked on storage", "recording"):
        assert text
        assert text in html
    assert "%gpumonitor --stop" in html
    assert "<script" not in html
    assert "class=" not in html


# In a kernel.


@pytest.fixture(scope="module")
def live(shared_kernel: Callable[..., Kernel]) -> Kernel:
    setup = "import torch, gpulab, sys, time, threading; torch.set_num_threads(1)\n"
    setup += "from gpulab.views.live.monitor import monitor, current"
    return shared_kernel(setup, "%load_ext gpulab")


@pytest.fixture(autouse=True)
def stop_monitor(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "live" in request.fixturenames:
        request.getfixturevalue("live").run("current() and current().abandon()")


def messages_within(live: Kernel, seconds: float) -> list[dict[str, Any]]:
    """Return the messages of the kernel while no cell runs."""
    messages, deadline_s = [], time.monotonic() + seconds
    while (left_s := deadline_s - time.monotonic()) > 0:
        try:
            messages.append(live.client.get_iopub_msg(timeout=left_s))
        except queue.Empty:
            break
    return messages


def all_messages(live: Kernel, code: str) -> list[dict[str, Any]]:
    """Return the messages of the kernel while a cell runs, including those for the output of earlier cells."""
    request, messages, idle = live.begin(code, notebook=True), [], False
    while not idle:
        messages.append(live.client.get_iopub_msg(timeout=60))
        is_reply = messages[-1]["parent_header"].get("msg_id") == request
        idle = is_reply and messages[-1]["content"].get("execution_state") == "idle"
    while live.client.get_shell_msg(timeout=60)["parent_header"].get("msg_id") != request:
        pass
    return messages


def panel_of(reply: Reply) -> str:
    """Return the comm id of the panel."""
    comms = (message["content"] for message in reply.of("comm_open"))
    return next(content["comm_id"] for content in comms if "_esm" in content["data"]["state"])


def update_count(messages: list[dict[str, Any]]) -> int:
    states = [message["content"]["data"].get("state", {}) for message in messages if message["msg_type"] == "comm_msg"]
    return len({state["now"]["elapsed_s"] for state in states if "now" in state})


START = "%gpumonitor watch --every 0.1"


def test_the_panel_updates_between_cells_and_its_messages_belong_to_the_cell_that_started_it(live):
    started = live.run(START, notebook=True)
    assert "application/vnd.jupyter.widget-view+json" in started.bundles[0]
    owner = started.messages[0]["parent_header"]["msg_id"]
    messages = [m for m in messages_within(live, 1.2) if m["msg_type"] == "comm_msg"]
    assert update_count(messages) >= 3
    assert {message["parent_header"]["msg_id"] for message in messages} == {owner}


def test_stop_shows_the_report_and_replaces_the_panel_by_a_message(live):
    started = live.run(START, notebook=True)
    display_id = started.of("display_data")[0]["content"]["transient"]["display_id"]
    messages = all_messages(live, "%gpumonitor --stop")
    [value] = [m["content"]["data"]["text/plain"] for m in messages if m["msg_type"] == "execute_result"]
    assert 'Run "watch"' in value
    update = [m["content"] for m in messages if m["msg_type"] == "update_display_data"][-1]
    assert update["transient"]["display_id"] == display_id
    assert re.match(r"gpulab: monitor 'watch' .* %gpureport watch$", update["data"]["text/plain"])
    assert live.value("'watch' in gpulab.runs")
    assert live.value("[t.name for t in threading.enumerate() if 'gpulab' in t.name]") == []


def test_the_stop_button_stops_the_monitor_but_not_the_running_cell(live, front):
    started = live.run(START, notebook=True)
    comm = panel_of(started)
    clicks = []

    def press(_: Any) -> None:
        if not clicks:
            clicks.append(front.say(comm, "stop"))

    reply = live.run("for _ in range(20): time.sleep(0.1)\n'done'", notebook=True, during=press)
    assert (reply.status, reply.value) == ("ok", "'done'"), "the cell runs to its end"
    assert live.value("current() is None")
    assert live.value("gpulab.runs['watch'].outcome") == "ok"


def test_the_stop_button_also_works_if_the_main_thread_receives_the_message(live):
    started = live.run(START, notebook=True)
    comm = panel_of(started)
    Front(live, subshell=False).say(comm, "stop")
    updates = [message for message in messages_within(live, 2) if message["msg_type"] == "update_display_data"]
    assert 'Run "watch"' in updates[-1]["content"]["data"]["text/plain"], "the report replaces the panel"
    assert live.value("current() is None")


def test_every_comm_of_the_monitor_is_closed_when_it_stops(live):
    started = live.run(START, notebook=True)
    opened = {message["content"]["comm_id"] for message in started.of("comm_open")}
    messages = all_messages(live, "current().stop()")
    closed = [message for message in messages if message["msg_type"] == "comm_close"]
    assert {message["content"]["comm_id"] for message in closed} == opened


def test_a_second_start_shows_the_running_monitor(live):
    live.run(START, notebook=True)
    reply = live.run("%gpumonitor other", notebook=True)
    assert "'watch'" in " ".join(text for _, text in reply.outputs)
    assert len(reply.of("comm_open")) == 2, "a panel and its layout"
    assert live.value("current().name") == "watch"


def test_a_profiled_cell_has_its_own_panel_and_report_while_a_monitor_runs(live):
    live.run(START, notebook=True)
    messages = all_messages(live, "%%gpuprofile inner --level sensors\ntime.sleep(0.6)")
    updates = [m["content"]["data"] for m in messages if m["msg_type"] == "update_display_data"]
    assert 'Run "inner"' in updates[-1]["text/plain"]
    states = [m["content"]["data"].get("state", {}) for m in messages if m["msg_type"] == "comm_msg"]
    phases = [state["now"]["phase"] for state in states if "now" in state]
    assert any(phase.startswith("paused") and "inner" in phase for phase in phases)
    assert update_count(messages_within(live, 1)) >= 2, "the monitor goes on"
    live.run("run = current().stop()")
    assert live.value("len(run.recording.pauses_ns)") == 1


def test_without_a_front_end_it_prints_one_line_and_sends_no_updates(live):
    [(_, text)] = live.run(START).outputs
    assert "'watch'" in text
    assert "%gpumonitor --stop" in text
    assert [m for m in messages_within(live, 0.6) if m["msg_type"] != "status"] == []


def test_in_vs_code_it_is_updated_as_html_and_names_the_magic_that_stops_it(live):
    live.run("__vsc_ipynb_file__ = 'x.ipynb'")
    try:
        started = live.run(START, notebook=True)
        updates = [m["content"]["data"] for m in messages_within(live, 1.2) if m["msg_type"] == "update_display_data"]
    finally:
        live.run("del __vsc_ipynb_file__")
    assert started.of("comm_open") == []
    assert len({bundle["text/html"] for bundle in updates}) >= 3
    assert "%gpumonitor --stop" in updates[0]["text/html"]


def test_a_monitor_at_the_end_of_a_cell_displays_its_panel_and_later_its_report(live):
    reply = live.run("m = monitor('plain', every=0.1); m", notebook=True)
    assert reply.value is None
    assert "application/vnd.jupyter.widget-view+json" in reply.bundles[0]
    reply = live.run("run = m.stop(); m", notebook=True)
    assert 'Run "plain"' in reply.value


def test_unloading_gpulab_ends_the_monitor(live):
    live.run(START, notebook=True)
    try:
        reply = live.run("%unload_ext gpulab", notebook=True)
        assert reply.status == "ok"
        assert live.value("current() is None")
        assert live.value("[t.name for t in threading.enumerate() if 'gpulab' in t.name]") == []
    finally:
        live.run("%load_ext gpulab")


@pytest.mark.parametrize(
    ("line", "text"),
    [("--stop", "no monitor"), ("--help", "--threshold")],
)
def test_the_magic_explains_itself(live, line, text):
    assert text in " ".join(output for _, output in live.run(f"%gpumonitor {line}", notebook=True).outputs)


def test_an_invalid_option_is_a_usage_error(live):
    reply = live.run("%gpumonitor --every 0", notebook=True)
    assert reply.content["ename"] == "UsageError"


def test_an_open_figure_survives_updates_of_the_monitor(live):
    live.run(START, notebook=True)
    cell = "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\ntime.sleep(0.6)\nplt.title('kept')"
    reply = live.run(cell, notebook=True)
    assert sum("image/png" in bundle for bundle in reply.bundles) == 1
