"""Recording a block: the run, its gaps, and the restored state of torch and Python."""

import threading

import pytest

torch = pytest.importorskip("torch", reason="recording needs PyTorch: pip install torch")

import gpulab  # noqa: E402  (after the check that torch is there)
from gpulab.analysis.steps.detection import find_steps  # noqa: E402
from gpulab.capture.merge_traces import missing_gpu_work  # noqa: E402
from gpulab.capture.plan import ProfilerPhase  # noqa: E402
from gpulab.capture.profiler import TraceWindow, warm_up  # noqa: E402
from gpulab.capture.run_registry import Runs, runs  # noqa: E402
from gpulab.capture.session import Session  # noqa: E402
from gpulab.errors import CaptureError, RunError  # noqa: E402
from gpulab.tables import EventKind, MarkKind  # noqa: E402
from tests.support.runs.made_runs import event, run_of  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_left")


class Squares(torch.utils.data.Dataset):
    def __init__(self, length=64):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index < 0 or index >= self.length:
            raise IndexError(index)
        return torch.full((8,), float(index)), index % 3


def train(count=40, workers=0, broken_at=None, dataset=None):
    """An ordinary loop; gives the losses."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(dataset or Squares(4 * count), batch_size=4, num_workers=workers)
    losses = []
    for number, (inputs, labels) in enumerate(loader):
        if number == broken_at:
            raise ZeroDivisionError("broken on purpose")
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_an_unmodified_loop_is_detected_and_recorded():
    with gpulab.profile("squares") as session:
        train(60)
    run = session.run
    detected = find_steps(run)
    assert runs["squares"] is run
    assert runs.last is run
    assert detected.detected_by == "DataLoader"
    assert len(detected) == 60
    assert detected.interior.sum() >= 8
    assert detected.unprofiled.sum() >= 5
    assert detected.profiler_overhead is not None
    assert run.outcome == "ok"
    assert run.recording.activities[0] == "cpu"
    loader = run.loaders[0]
    assert (loader.workers, loader.batch_size, loader.batches, loader.dataset) == (0, 4, 60, "Squares")
    kinds = run.mark_rows["kind"]
    assert (kinds == MarkKind.NEXT).sum() == 61
    assert (kinds == MarkKind.OPTIMIZER).sum() == 60


def test_recording_does_not_change_the_results_of_the_loop():
    alone = train(20)
    with gpulab.profile("watched"):
        watched = train(20)
    assert watched == alone


@pytest.mark.alone("compares times on two clocks of this machine")
def test_events_are_within_the_windows_and_on_the_clock_of_the_marks():
    with gpulab.profile("clock") as session:
        train(60)
    run = session.run
    events = run.event_rows
    slack_ns = 2_000_000
    inside = [
        (events["start_ns"] >= start - slack_ns) & (events["start_ns"] <= end + slack_ns)
        for start, end in run.recording.windows_ns
    ]
    assert sum(mask.sum() for mask in inside) == len(events)
    traced = events.of_kind(EventKind.LOADER)["start_ns"]
    marked = run.mark_rows.of_kind(MarkKind.NEXT)["start_ns"]
    nearest = [abs(marked - at).min() for at in traced.tolist()]
    assert max(nearest) < slack_ns


def test_settings_are_read_while_the_loop_runs():
    before = torch.get_num_threads()

    def train_alone():
        torch.set_num_threads(1)
        train(8)
        torch.set_num_threads(before)

    with gpulab.profile("threads") as session:
        train_alone()
    assert session.run.facts["threads"] == "1"


def test_dataloader_workers_are_recorded():
    with gpulab.profile("forked") as session:
        losses = train(40, workers=2)
    assert len(losses) == 40
    assert session.run.loaders[0].workers == 2
    assert find_steps(session.run).burst == 2


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_the_block_propagates_and_the_run_is_kept(error):
    def block():
        with gpulab.profile("broken"):
            train(12)
            raise error

    with pytest.raises(error):
        block()
    assert runs["broken"].outcome == error.__name__
    assert len(runs["broken"].event_rows) > 0


def test_an_error_in_the_dataset_reaches_the_user_unchanged():
    class Broken(Squares):
        def __getitem__(self, index):
            return torch.ones(8), 0 * (1 // (index - 30))

    with pytest.raises(ZeroDivisionError), gpulab.profile("dataset"):
        train(dataset=Broken())


def test_the_sensors_level_records_only_sensors_and_marks():
    with gpulab.profile("sensors", level="sensors") as session:
        train(20)
    assert len(session.run.event_rows) == 0
    assert find_steps(session.run).unprofiled.sum() >= 15
    findings = gpulab.diagnose(session.run).findings
    rules = {finding.rule for finding in findings} - {"shared_cpu"}  # other programs may run
    assert rules <= {"slow_first_step"}, "marks alone show nothing else"


def test_the_requested_number_of_steps_is_recorded():
    with gpulab.profile("four", steps=4) as session:
        train(40)
    start, end = session.run.recording.windows_ns[-1]
    events = session.run.event_rows
    updates = events.select(events.matching(lambda word: word.startswith("Optimizer.step#")))
    assert ((updates["start_ns"] >= start) & (updates["start_ns"] <= end)).sum() == 4


def test_the_users_profiler_in_the_cell_gets_all_its_events():
    with gpulab.profile("own") as session:
        train(10)
        with torch.profiler.profile() as user_profiler:
            torch.ones(3) + 1
    assert any(event.name == "aten::add" for event in user_profiler.events())
    assert "own profiler" in session.run.recording.left_out[0].what
    assert len(session.run.event_rows) > 0


def test_under_a_running_profiler_only_sensors_are_recorded():
    with torch.profiler.profile() as user_profiler, gpulab.profile("inner") as session:
        train(10)
    assert any(event.name == "aten::addmm" for event in user_profiler.events())
    assert len(session.run.event_rows) == 0
    assert "another PyTorch profiler" in session.run.recording.left_out[0].why
    assert len(find_steps(session.run)) == 10


def test_a_nested_recording_is_rejected_and_the_outer_one_continues():
    with gpulab.profile("outer") as session:
        with pytest.raises(CaptureError, match=r"'inner'.*'outer'"), gpulab.profile("inner"):
            pass
        train(10)
    assert len(find_steps(session.run)) == 10


def test_manual_step_marks_are_used_and_ignored_outside_a_recording():
    gpulab.step()
    with gpulab.profile("by hand") as session:
        for _ in range(20):
            torch.ones(100, 100) @ torch.ones(100, 100)
            gpulab.step()
    assert find_steps(session.run).detected_by == "gpulab.step()"
    assert len(find_steps(session.run)) == 19


def test_steps_of_a_loop_without_a_loader_are_detected_by_the_optimizer():
    weight = torch.nn.Parameter(torch.ones(50, 50))
    optimizer = torch.optim.Adam([weight])
    with gpulab.profile("optimizer") as session:
        for _ in range(30):
            (weight @ weight).sum().backward()
            optimizer.step()
    assert find_steps(session.run).detected_by == "optimizer"


@pytest.mark.alone("finds a loop by how evenly its operators come back on this machine")
def test_steps_of_a_loop_without_marks_are_detected_by_repetition():
    with gpulab.profile("plain") as session:
        x = torch.ones(60, 60)
        for _ in range(50):
            x = (x @ x).clamp(-1, 1)
    assert find_steps(session.run).detected_by.startswith("repetition of aten::")


def test_live_snapshots_are_available_while_recording():
    snapshots = []
    with gpulab.profile("live", on_tick=snapshots.append) as session:
        train(20)
        while len(snapshots) < 3:
            torch.ones(3) + 1
        now = session.live()
    assert now.steps >= 20
    assert 0 <= now.waiting_frac <= 1
    assert now.elapsed_s > 0
    assert snapshots[0].phase in {phase.value for phase in ProfilerPhase}


def test_the_live_step_is_the_one_that_runs_in_every_epoch():
    layer = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=2)
    current = []
    with gpulab.profile("epochs", level="sensors") as session:
        for _ in range(3):
            for batch in loader:
                layer(batch).sum().backward()
                optimizer.step()
                current.append(session.live().steps)
            assert session.live().steps == len(current), "between two epochs"
    assert current == list(range(1, 19))
    assert len(find_steps(session.run)) == 18


def test_recording_works_outside_the_main_thread():
    finished_runs = []

    def work():
        with gpulab.profile("elsewhere") as session:
            train(20)
        finished_runs.append(session.run)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(find_steps(finished_runs[0])) == 20
    assert len(finished_runs[0].event_rows) > 0


def test_launches_without_gpu_activity_are_reported_as_missing():
    call = event(EventKind.LAUNCH, "cudaLaunchKernel", 0, 1)
    assert "CUPTI" in missing_gpu_work(run_of([call]), ("cpu", "cuda")).why
    assert missing_gpu_work(run_of([call, event(EventKind.KERNEL, "k", 0, 1)]), ("cpu", "cuda")) is None
    assert missing_gpu_work(run_of([event(EventKind.OP, "aten::mm", 0, 1)]), ("cpu", "cuda")) is None


def test_warming_up_adds_no_run():
    before = list(runs)
    warm_up()
    assert list(runs) == before


def test_an_abandoned_session_leaves_no_run():
    session = Session("given up")
    session.abandon()
    session.start()
    train(5)
    session.abandon()
    session.abandon()
    assert "given up" not in runs


def test_an_interrupted_start_leaves_the_profiler_off(monkeypatch):
    def interrupted(self):
        start(self)
        raise KeyboardInterrupt

    start = TraceWindow.start
    monkeypatch.setattr(TraceWindow, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Session("interrupted").start()
    monkeypatch.undo()
    with gpulab.profile("next"):
        train(5)


def test_an_unknown_level_and_zero_steps_are_rejected():
    with pytest.raises(CaptureError, match="sensors, trace, deep"), gpulab.profile(level="everything"):
        pass
    with pytest.raises(CaptureError, match="0 steps"), gpulab.profile(steps=0):
        pass


def test_last_without_any_run_is_an_error():
    with pytest.raises(RunError, match="There is no run yet"):
        assert Runs().last


def test_an_unknown_run_name_is_an_error():
    with pytest.raises(RunError, match="There is no run named 'nowhere'"):
        runs["nowhere"]


def test_the_fix_for_an_unknown_run_name_is_a_name_that_a_recording_can_have():
    with pytest.raises(RunError) as error:
        runs["case 2"]
    assert "put %%gpuprofile case_2 at the top" in error.value.fix
