"""The monitor: it watches in the background, gives way to recordings, ends without a trace, and leaves a run."""

from __future__ import annotations

import gc
import queue
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
from gpulab.capture.live.activity import SILENT_NS, Pulse
from gpulab.capture.live.snapshot import WorkerNow
from gpulab.capture.live.workers import EVERY_NS, WorkersNow
from gpulab.errors import CaptureError
from gpulab.run import Run
from gpulab.tables import MarkKind
from gpulab.views.live.alert import Watcher
from gpulab.views.live.html_panel import markup, sparkline
from gpulab.views.live.monitor import Monitor, current, monitor
from gpulab.views.live.panel_content import MANY_WORKERS, Glances
from tests.support.front_end.kernel import ROOT, Kernel, Reply
from tests.support.front_end.live_panel import Front, gpu, live_state
from tests.support.nvml_standin import build, installed

SECOND_NS = 1_000_000_000


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    kept = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(kept)


@pytest.fixture
def watched() -> Iterator[Callable[..., Monitor]]:
    """Starts monitors; whatever a test leaves running is given up."""
    yield monitor
    if (left := current()) is not None:
        left.abandon()


def train(batches: int = 20, data: TensorDataset | None = None) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data or TensorDataset(torch.ones(8 * batches, 4)), batch_size=8)
    for (x,), _ in zip(loader, range(batches), strict=False):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()


def made(run: Run) -> int:
    """How many steps of an optimizer it saw."""
    return int((run.mark_rows["kind"] == MarkKind.OPTIMIZER).sum())


def until(true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def samplers() -> int:
    return sum(thread.name == "gpulab-sampler" for thread in threading.enumerate())


# What it records.


def test_a_monitor_records_steps_and_sensors_across_blocks_and_gives_a_run(watched, nothing_left):
    running = watched("across", every=0.1)
    data = TensorDataset(torch.ones(120, 4))
    train(15, data)
    train(10, data)
    run = running.stop()
    assert gpulab.runs["across"] is run
    assert (run.recording.level, run.outcome, len(run.event_rows)) == ("sensors", "ok", 0)
    assert made(run) == 25
    assert len(run.host_rows) >= 1
    assert len(run.loaders) >= 1
    report = repr(gpulab.report(run))
    assert "Sensor readings" in report
    assert "found by DataLoader" in report


def test_without_any_step_the_report_says_what_the_sensors_said(watched):
    running = watched("idle", every=0.1)
    until(lambda: running.glance.elapsed_s > 0.3)
    report = repr(gpulab.report(running.stop()))
    assert "Sensor readings" in report
    assert "CPU, all cores" in report


def test_it_ends_with_its_block_and_keeps_what_ended_it(nothing_left):
    running = monitor("block", every=0.1)
    with pytest.raises(ZeroDivisionError), running:
        train(1 // 0)
    assert running.run.outcome == "ZeroDivisionError"
    assert current() is None


def test_stopping_twice_gives_the_same_run(watched):
    running = watched("twice", every=0.1)
    assert running.stop() is running.stop()


def test_steps_said_by_the_program_are_marked(watched):
    running = watched("said", every=0.1)
    for _ in range(5):
        gpulab.step()
    assert len(running.stop().mark_rows) == 5
    gpulab.step()  # nobody listens any more


def test_stopped_in_another_thread_it_gives_its_run_at_once_and_its_hooks_go_soon(watched, nothing_left):
    running = watched("elsewhere", every=0.1)
    train(5)
    thread = threading.Thread(target=running.stop)
    thread.start()
    thread.join()
    assert made(running.run) == 5
    train(5)  # the main thread comes by, and takes the hooks away
    until(lambda: optimizers._global_optimizer_post_hooks == {})
    with watched("after", every=0.1) as after:
        train(4)
    assert made(after.run) == 4


def test_hooks_are_not_taken_away_while_an_optimizer_calls_them(watched, nothing_left):
    """A dictionary that shrinks under its reader raises in the user's step: another hook is still to be called."""
    running = watched("amid", every=0.1)
    called = []

    def ends(*_: object) -> None:
        called.append(None)
        thread = threading.Thread(target=running.stop)
        thread.start()
        thread.join()
        sum(range(1000))  # instructions between which a pending call would come

    handles = [optimizers.register_optimizer_step_post_hook(hook) for hook in (ends, lambda *_: None)]
    try:
        train(3)
    finally:
        for handle in handles:
            handle.remove()
    assert len(called) == 3
    until(lambda: not optimizers._global_optimizer_post_hooks)


@pytest.fixture
def eight_gpus(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stand-in driver, with as many GPUs as a large machine has."""
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    for standin in installed(build(tmp_path_factory.mktemp("nvml")), monkeypatch):
        monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        standin.reset(8)
        yield


def test_each_gpu_is_shown_and_recorded_also_after_it_gave_way(eight_gpus, watched):
    running = watched("eight", every=0.1)
    train(4)
    until(lambda: len(running.glance.bars) == 2)
    tiles = {tile.label: tile.value for tile in running.glance.tiles if tile.group == "GPUs"}
    assert tiles == {f"GPU {index}": f"{61 + 3 * index} %" for index in range(8)}
    with gpulab.profile("inner", level="sensors"):
        pass
    before = running.glance.elapsed_s
    until(lambda: running.glance.elapsed_s > before + 0.3)
    run = running.stop()
    [pause] = run.recording.pauses_ns
    later = run.gpu_rows.where(run.gpu_rows["at_ns"] > pause[1])
    assert set(later["device"].tolist()) == set(range(8))


# One recording at a time.


def test_a_second_monitor_tells_of_the_first(watched):
    watched("first", every=0.1)
    with pytest.raises(CaptureError, match=r"'first' is monitored already[\s\S]*--stop"):
        monitor("second")
    assert current().name == "first"


def test_it_leaves_no_thread_and_no_hook_while_something_is_profiled(watched, nothing_left):
    running = watched("behind", every=0.1)
    train(6)
    callbacks = len(gc.callbacks)
    with gpulab.profile("inner", level="sensors") as session:
        assert samplers() == 1, "the profiled block's own"
        assert len(optimizers._global_optimizer_post_hooks) == 1
        assert len(gc.callbacks) == callbacks
        assert running.glance.phase == "paused while inner is recorded"
        train(9)
    assert samplers() == 1
    train(6)
    run = running.stop()
    assert made(session.run) == 9
    assert made(run) == 12, "what was recorded by the other is not counted twice"
    [pause] = run.recording.pauses_ns
    assert not any(pause[0] < at < pause[1] for at in run.host_rows["at_ns"])
    [gap] = [gap for gap in run.recording.left_out if "inner" in gap.what]
    assert "two recordings at once would measure each other" in gap.why


def test_a_recording_that_fails_to_start_lets_the_monitor_go_on(watched):
    running = watched("steady", every=0.1)
    with gpulab.profile("outer", level="sensors"), pytest.raises(CaptureError):
        gpulab.profile("inner").__enter__()
    train(4)
    assert made(running.stop()) == 4


def test_a_monitor_does_not_start_while_something_is_recorded():
    with gpulab.profile("outer", level="sensors"), pytest.raises(CaptureError, match="'outer' is being recorded"):
        monitor("late")
    assert current() is None


def test_a_viewer_that_fails_disturbs_neither_the_other_recording_nor_the_monitor(watched):
    class Broken:
        def draw(self, glance: object) -> None:
            raise ValueError("no screen")

        def end(self, shown: object) -> None:
            pass

    running = watched("shown", every=0.1)
    running.show(Broken())
    with gpulab.profile("inner", level="sensors"):
        pass
    assert any("no screen" in gap.why for gap in running.stop().recording.left_out)


@pytest.mark.parametrize(("given", "told"), [({"every": 0}, "every 0 s"), ({"threshold": 50}, "busy 50")])
def test_a_value_that_makes_no_sense_is_refused_with_what_to_write(given, told):
    with pytest.raises(CaptureError, match=told):
        monitor(**given)
    assert current() is None


def test_print_gives_one_line(watched):
    running = watched("line", every=0.1)
    train(3)
    until(lambda: running.glance.elapsed_s > 0.2)
    assert "\n" not in repr(running)
    assert repr(running).startswith("gpulab monitor line: sensors only, step ")
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


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_in_a_process_of_its_own_it_ends_in_order_and_says_nothing(script, tmp_path):
    code = "import sys, time, gpulab, importlib; sys.modules and importlib.import_module('gpulab.views.live.monitor')\n"
    code += "import gpulab.views; gpulab.views.live.monitor = sys.modules['gpulab.views.live.monitor']\n" + script
    told = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        env={**__import__("os").environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")


# The pulse: whether the loop runs, and what it waits for.


class Marked:
    """Marks as Pulse sees them."""

    def __init__(self, **known: Any) -> None:
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.steps = self.waited_ns = 0
        self.loaders: list[object] = [object()]
        self.thread = -1
        vars(self).update(known)

    def step(self, at_ns: int, waited_ns: int) -> None:
        self.first_ns = at_ns if self.first_ns is None else self.first_ns
        self.last_ns, self.steps, self.waited_ns = at_ns, self.steps + 1, self.waited_ns + waited_ns


def pulsed(*, until_s: float, stops_s: float = 1e9, goes_on_s: float = 1e9, busy: float = 0.25) -> Any:
    """Looks ten times a second at a loop that steps as often and waits for 30 of each 100 ms."""
    pulse, marks, beat = Pulse(), Marked(), None
    for tick in range(1, round(until_s * 10) + 1):
        at_s = tick / 10
        working = at_s <= stops_s or at_s >= goes_on_s
        if working:
            marks.step(round(at_s * SECOND_NS), 30_000_000)
        readings = [gpu(util_frac=busy if working else 0.0), gpu(util_frac=0.0)]
        beat = pulse.look(round(at_s * SECOND_NS), marks, readings)
    return beat


def test_before_the_first_step_nothing_is_known():
    beat = Pulse().look(SECOND_NS, Marked(), [gpu()])
    assert (beat.running, beat.waiting_frac, beat.gpu_busy_frac) == (False, None, None)


def test_the_share_of_waiting_is_of_the_loops_time():
    beat = pulsed(until_s=30)
    assert beat.running
    assert beat.waiting_frac == pytest.approx(0.3, abs=0.01)
    assert beat.waiting_lately_frac == pytest.approx(0.3, abs=0.01)


def test_time_between_two_cells_is_no_time_of_the_loop():
    silent = pulsed(until_s=600, stops_s=30)
    assert not silent.running
    assert silent.waiting_frac == pytest.approx(0.3, abs=0.01)
    again = pulsed(until_s=630, stops_s=30, goes_on_s=600)
    assert again.running
    assert again.waiting_frac == pytest.approx(0.3, abs=0.01)
    assert again.gpu_busy_frac == pytest.approx(0.25, abs=0.03)


def test_only_gpus_that_work_while_the_loop_runs_count_as_used():
    assert pulsed(until_s=10).used_gpus == (0,)
    assert pulsed(until_s=10, busy=0.0).used_gpus == (0, 1), "where none works, all are idle"


def test_a_wait_that_lasts_is_counted_before_it_is_over():
    """Marks count a wait when it ends; a loader that hangs must not look like a loop that computes."""
    hangs, go = threading.Event(), threading.Event()

    class Hanging(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            if index == 4:
                hangs.set()
                assert go.wait(20)
            return super().__getitem__(index)

    told = []

    def on_tick(live: Any) -> None:
        if hangs.is_set():
            told.append(live.waiting_frac)
            if len(told) >= 15:
                go.set()

    with gpulab.profile("hang", level="sensors", on_tick=on_tick):
        for _ in DataLoader(Hanging(torch.ones(6, 1)), batch_size=1):
            pass
    assert told[-1] > 0.8


def test_a_loop_with_slow_steps_is_not_taken_for_silent():
    pulse, marks = Pulse(), Marked()
    for second in range(1, 41):
        if second % 4 == 1:
            marks.step(second * SECOND_NS, 0)
        running = pulse.look(second * SECOND_NS, marks, []).running
        assert running
    assert SILENT_NS == 5 * SECOND_NS


# The workers at this moment.


def test_a_worker_that_computes_and_one_that_sleeps_are_told_apart():
    spin = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    rest = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        workers, at_ns = WorkersNow(), time.monotonic_ns()
        assert [each.load_frac for each in workers.look(at_ns, [spin.pid, rest.pid])] == [None, None]
        time.sleep(1)
        busy, idle = workers.look(time.monotonic_ns(), [spin.pid, rest.pid])
        assert busy.load_frac > idle.load_frac
        assert idle.load_frac < 0.5
        assert idle.blocked in (False, None)
        rest.kill()
        rest.wait()
        time.sleep(EVERY_NS / 1e9)
        assert len(workers.look(time.monotonic_ns(), [spin.pid, rest.pid])) == 1, "one that ended is not there"
    finally:
        spin.kill()
        rest.kill()
        spin.wait()


# The alert.


def episode(utils: list[float | None], every_s: float = 0.5, **state: Any) -> list[str]:
    """What is told at each look at one GPU."""
    watcher = Watcher()
    looks = []
    for number, util in enumerate(utils):
        known = {"running": True, "waiting_lately_frac": 0.71, "used_gpus": (0,), **state}
        alert = watcher.look(live_state(elapsed_s=number * every_s, gpus=(gpu(util_frac=util),), **known))
        looks.append(alert.text if alert else "")
    return looks


def test_ten_seconds_under_half_are_told_with_what_the_loop_does():
    told = episode([0.2] * 25)
    assert told[:20] == [""] * 20
    assert told[24] == "GPU under 50 % for 12 s; the loop waits for data 71 % of the time"


def test_the_line_it_is_mostly_at_is_named_where_it_does_not_wait():
    [*_, told] = episode([0.2] * 25, waiting_lately_frac=0.02)
    assert told.endswith("waits for data 2 % of the time; it is mostly at train (cell line 7)")
    [*_, told] = episode([0.2] * 25, waiting_lately_frac=None)
    assert told == "GPU under 50 % for 12 s; it is mostly at train (cell line 7)"


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
    ids=["it recovers", "it swings above", "no loop runs", "one step", "not measured", "a hole", "not used"],
)
def test_nothing_is_told_where_it_is_not_so(utils, state):
    assert set(episode(utils, **state)) == {""}


def test_it_is_said_once_for_each_episode_though_its_seconds_count_on():
    glances = Glances("r")
    said, texts = [], []
    for number, util in enumerate([0.2] * 30 + [0.9] * 10 + [0.1] * 30):
        state = live_state(elapsed_s=number / 2, gpus=(gpu(util_frac=util),), running=True, used_gpus=(0,))
        glance = glances.of(state)
        said.append(glance.alert_said)
        texts.append(glance.alert)
    spoken = [now for before, now in zip(["", *said], said, strict=False) if now and now != before]
    assert len(spoken) == 2
    assert len(set(filter(None, texts))) > 4


def test_of_several_gpus_the_idle_ones_are_named():
    watcher = Watcher()
    gpus = [gpu(util_frac=util) for util in (0.9, 0.1, 0.9, 0.1)]
    for number in range(25):
        state = live_state(elapsed_s=number / 2, gpus=tuple(gpus), running=True, used_gpus=(0, 1, 2, 3))
        alert = watcher.look(state)
    assert alert.text.startswith("GPUs 1 and 3 under 50 % for 12 s")
    assert alert.gpus == (1, 3)


# What the panel says of it.


def test_the_bars_sum_to_the_whole_and_say_what_they_are_of():
    glance = Glances("r").of(live_state(gpus=(gpu(), gpu()), used_gpus=(1,), gpu_busy_frac=0.34))
    loop, device = glance.bars
    assert [sum(share.frac for share in bar.shares) for bar in (loop, device)] == [1, 1]
    assert loop.words == "waiting for data 41 %, the rest of the loop 59 %"
    assert (device.title, device.words) == ("GPU (1 of 2 GPUs)", "busy 34 %, idle 66 %")
    assert "driver" in device.about
    assert Glances("r").of(live_state(waiting_frac=None)).bars == (), "what is not measured has no bar"


def test_every_point_has_its_phase_and_the_legend_names_those_there_are():
    glances = Glances("r")
    for number, phase in enumerate(["before the first step", "warming up", "recording", "recorded; sensors go on"]):
        glance = glances.of(live_state(phase=phase, elapsed_s=number))
    assert glance.phases == "owrs"
    assert [words for _, words in glance.legend] == [
        "before the first step",
        "warming up, profiler off",
        "recording",
        "sensors only",
    ]
    assert glance.span == "last 3 s"


def test_each_worker_has_a_tile_and_one_that_waits_for_storage_says_so():
    workers = (WorkerNow(load_frac=0.93, blocked=False), WorkerNow(load_frac=0.02, blocked=True))
    first, second = Glances("r").of(live_state(workers_now=workers)).tiles[-2:]
    assert (first.label, first.value, first.note) == ("worker 0", "93 %", "")
    assert (second.label, second.value, second.note) == ("worker 1", "2 %", "blocked on storage")


def test_a_worker_that_was_gone_for_a_while_has_a_hole_there():
    glances, one = Glances("r"), (WorkerNow(load_frac=0.5, blocked=False),)
    for workers in (one, (), one):
        glance = glances.of(live_state(workers_now=workers))
    assert glance.tiles[-1].trail == (50, None, 50)


def test_many_workers_share_a_tile():
    many = tuple(WorkerNow(load_frac=0.5, blocked=index == 3) for index in range(MANY_WORKERS + 1))
    tile = Glances("r").of(live_state(workers_now=many)).tiles[-1]
    assert (tile.label, tile.value, tile.note) == ("17 workers", "8.5 cores", "1 blocked on storage")
    assert len(tile.bars) == 17


def test_a_worker_whose_load_nobody_tells_is_not_shown_as_idle():
    silent = (WorkerNow(load_frac=None, blocked=None),)
    tile = Glances("r").of(live_state(workers_now=silent)).tiles[-1]
    assert (tile.value, tile.trail, tile.frac) == ("not measured", (None,), None)


def test_the_sparkline_of_plain_text_shows_holes_and_never_more_points_than_fit():
    assert sparkline((0, 50, 100, None)) == "▁▅█\u00a0"
    assert len(sparkline(tuple(range(100)))) <= 28
    assert sparkline((100,) * 100)[-1] == "█"


def test_the_html_panel_carries_bars_alert_workers_phases_and_how_to_stop():
    glances = Glances("r", stop="to stop: %gpumonitor --stop")
    for number in range(25):
        glance = glances.of(
            live_state(
                elapsed_s=number,
                gpus=(gpu(util_frac=0.1),),
                running=True,
                used_gpus=(0,),
                gpu_busy_frac=0.1,
                workers_now=(WorkerNow(load_frac=0.9, blocked=True),),
            )
        )
    html = markup(glance)
    for words in ("the rest of the loop 59 %", "busy 10 %", "under 50 % for", "blocked on storage", "recording"):
        assert words in html
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
def ended(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "live" in request.fixturenames:
        request.getfixturevalue("live").run("current() and current().abandon()")


def heard(live: Kernel, seconds: float) -> list[dict[str, Any]]:
    """What comes from the kernel while no cell runs."""
    messages, deadline_s = [], time.monotonic() + seconds
    while (left := deadline_s - time.monotonic()) > 0:
        try:
            messages.append(live.client.get_iopub_msg(timeout=left))
        except queue.Empty:
            break
    return messages


def everything(live: Kernel, code: str) -> list[dict[str, Any]]:
    """What the kernel says while a cell runs, also what belongs to the output of an earlier one."""
    request, messages, idle = live.begin(code, notebook=True), [], False
    while not idle:
        messages.append(live.client.get_iopub_msg(timeout=60))
        own = messages[-1]["parent_header"].get("msg_id") == request
        idle = own and messages[-1]["content"].get("execution_state") == "idle"
    while live.client.get_shell_msg(timeout=60)["parent_header"].get("msg_id") != request:
        pass
    return messages


def panel_of(reply: Reply) -> str:
    """The comm of the panel."""
    opened = (message["content"] for message in reply.of("comm_open"))
    return next(content["comm_id"] for content in opened if "_esm" in content["data"]["state"])


def moves(messages: list[dict[str, Any]]) -> int:
    told = [message["content"]["data"].get("state", {}) for message in messages if message["msg_type"] == "comm_msg"]
    return len({state["now"]["elapsed_s"] for state in told if "now" in state})


START = "%gpumonitor watch --every 0.1"


def test_the_panel_moves_between_cells_and_its_messages_belong_to_the_cell_that_started_it(live):
    started = live.run(START, notebook=True)
    assert "application/vnd.jupyter.widget-view+json" in started.bundles[0]
    owner = started.messages[0]["parent_header"]["msg_id"]
    messages = [m for m in heard(live, 1.2) if m["msg_type"] == "comm_msg"]
    assert moves(messages) >= 3
    assert {message["parent_header"]["msg_id"] for message in messages} == {owner}


def test_stop_shows_the_report_here_and_says_in_the_panels_place_that_it_ended(live):
    started = live.run(START, notebook=True)
    shown = started.of("display_data")[0]["content"]["transient"]["display_id"]
    messages = everything(live, "%gpumonitor --stop")
    [value] = [m["content"]["data"]["text/plain"] for m in messages if m["msg_type"] == "execute_result"]
    assert "Run watch" in value
    update = [m["content"] for m in messages if m["msg_type"] == "update_display_data"][-1]
    assert update["transient"]["display_id"] == shown
    assert update["data"]["text/plain"].startswith("gpulab: the monitor 'watch' was stopped after")
    assert live.value("'watch' in gpulab.runs")
    assert live.value("[t.name for t in threading.enumerate() if 'gpulab' in t.name]") == []


def test_the_stop_button_ends_the_monitor_and_no_cell(live, front):
    started = live.run(START, notebook=True)
    comm = panel_of(started)
    pressed = []

    def press(_: Any) -> None:
        if not pressed:
            pressed.append(front.say(comm, "stop"))

    reply = live.run("for _ in range(20): time.sleep(0.1)\n'whole'", notebook=True, during=press)
    assert (reply.status, reply.value) == ("ok", "'whole'"), "the cell runs to its end"
    assert live.value("current() is None")
    assert live.value("gpulab.runs['watch'].outcome") == "ok"


def test_the_button_works_too_where_the_message_comes_to_the_main_thread(live):
    started = live.run(START, notebook=True)
    comm = panel_of(started)
    Front(live, subshell=False).say(comm, "stop")
    updates = [message for message in heard(live, 2) if message["msg_type"] == "update_display_data"]
    assert "Run watch" in updates[-1]["content"]["data"]["text/plain"], "the report stands in the panel's place"
    assert live.value("current() is None")


def test_every_comm_of_the_monitor_is_closed_in_the_end(live):
    started = live.run(START, notebook=True)
    opened = {message["content"]["comm_id"] for message in started.of("comm_open")}
    messages = everything(live, "current().stop()")
    closed = [message for message in messages if message["msg_type"] == "comm_close"]
    assert {message["content"]["comm_id"] for message in closed} == opened


def test_a_second_start_shows_the_first_one_here_and_says_so(live):
    live.run(START, notebook=True)
    reply = live.run("%gpumonitor other", notebook=True)
    assert "'watch' is monitored already" in " ".join(text for _, text in reply.outputs)
    assert len(reply.of("comm_open")) == 2, "a panel and its layout"
    assert live.value("current().name") == "watch"


def test_a_profiled_cell_gets_its_panel_and_report_while_a_monitor_is_on(live):
    live.run(START, notebook=True)
    messages = everything(live, "%%gpuprofile inner --level sensors\ntime.sleep(0.6)")
    shown = [m["content"]["data"] for m in messages if m["msg_type"] == "update_display_data"]
    assert "Run inner" in shown[-1]["text/plain"]
    told = [m["content"]["data"].get("state", {}) for m in messages if m["msg_type"] == "comm_msg"]
    assert "paused while inner is recorded" in [state["now"]["phase"] for state in told if "now" in state]
    assert moves(heard(live, 1)) >= 2, "the monitor goes on"
    live.run("run = current().stop()")
    assert live.value("len(run.recording.pauses_ns)") == 1


def test_where_nobody_watches_it_says_one_line_and_sends_nothing_more(live):
    reply = live.run(START)
    assert [text for _, text in reply.outputs] == [
        "gpulab: 'watch' is monitored. %gpumonitor --stop ends it and reports"
    ]
    assert [m for m in heard(live, 0.6) if m["msg_type"] != "status"] == []


def test_in_vs_code_it_moves_as_html_and_names_the_magic_that_stops_it(live):
    live.run("__vsc_ipynb_file__ = 'x.ipynb'")
    try:
        started = live.run(START, notebook=True)
        updates = [m["content"]["data"] for m in heard(live, 1.2) if m["msg_type"] == "update_display_data"]
    finally:
        live.run("del __vsc_ipynb_file__")
    assert started.of("comm_open") == []
    assert len({bundle["text/html"] for bundle in updates}) >= 3
    assert "%gpumonitor --stop" in updates[0]["text/html"]


def test_a_monitor_at_the_end_of_a_cell_shows_itself_and_can_be_replaced_by_its_report(live):
    reply = live.run("m = monitor('plain', every=0.1); m", notebook=True)
    assert reply.value is None
    assert "application/vnd.jupyter.widget-view+json" in reply.bundles[0]
    reply = live.run("run = m.stop(); m", notebook=True)
    assert "Run plain" in reply.value


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
    ("line", "said"),
    [("--stop", "no monitor runs"), ("--help", "--threshold SHARE")],
)
def test_the_line_explains_itself(live, line, said):
    assert said in " ".join(text for _, text in live.run(f"%gpumonitor {line}", notebook=True).outputs)


def test_a_line_that_makes_no_sense_is_a_usage_error(live):
    reply = live.run("%gpumonitor --every 0", notebook=True)
    assert reply.content["ename"] == "UsageError"


def test_a_figure_being_drawn_survives_while_a_monitor_moves(live):
    live.run(START, notebook=True)
    cell = "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\ntime.sleep(0.6)\nplt.title('kept')"
    reply = live.run(cell, notebook=True)
    assert sum("image/png" in bundle for bundle in reply.bundles) == 1
