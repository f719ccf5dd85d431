"""gpulab.phase(): what a recording notes of it, and that it does nothing else."""

import threading
from pathlib import Path

import pytest

import gpulab
from gpulab.capture.hooks import phase_recorder
from gpulab.capture.hooks.phase_recorder import PhaseRecorder

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

DATASETS = Path(__file__).resolve().parents[2] / "recorded_runs"


def names_and_ends(run):
    rows = run.phase_rows
    return list(zip(rows.text("name").to_list(), rows["start_ns"].tolist(), rows["end_ns"].tolist(), strict=True))


def test_without_a_recording_it_does_nothing():
    with gpulab.phase("validation"):
        pass
    with gpulab.profile("empty", level="sensors") as session:
        pass
    assert len(session.run.phase_rows) == 0


def test_a_recorded_phase_is_saved_and_loaded_with_its_times(tmp_path):
    with gpulab.profile("phases", level="sensors") as session:
        with gpulab.phase("outer"), gpulab.phase("größe\x00"):
            pass
        still_open = gpulab.phase("open")
        still_open.__enter__()
    (inner, *inner_ns), (outer, *outer_ns), (last, *last_ns) = names_and_ends(session.run)
    assert (inner, outer, last) == ("größe\x00", "outer", "open")
    assert 0 <= outer_ns[0] <= inner_ns[0] <= inner_ns[1] <= outer_ns[1] <= last_ns[0]
    assert last_ns[1] == session.run.span_ns
    still_open.__exit__(None, None, None)  # after the recording
    loaded = gpulab.load(gpulab.save(session.run, tmp_path / "a.gpulab"))
    assert names_and_ends(loaded) == names_and_ends(session.run)
    assert list(loaded.phases["name"]) == ["größe\\x00", "outer", "open"]  # printable


def test_a_file_from_before_phases_has_none():
    run = gpulab.load(next(DATASETS.glob("*/run.gpulab")))
    assert len(run.phase_rows) == 0
    assert not any(gap.what.startswith("parts of the file") for gap in run.recording.left_out)


def test_an_exception_ends_the_phase_and_passes_through_unchanged():
    error = KeyError("mine")
    recording = gpulab.profile("failing", level="sensors")
    with recording as session, pytest.raises(KeyError) as caught, gpulab.phase("validation"):
        raise error
    assert caught.value is error
    assert [name for name, _, end_ns in names_and_ends(session.run) if end_ns < session.run.span_ns] == ["validation"]


def test_phases_of_other_threads_are_not_recorded():
    def work():
        with gpulab.phase("elsewhere"):
            pass

    with gpulab.profile("threads", level="sensors") as session:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(session.run.phase_rows) == 0


def test_memory_is_bounded_and_the_report_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(phase_recorder, "MAX_PHASES", 3)
    recorder = PhaseRecorder()
    for _ in range(5):
        recorder.end(recorder.begin("step"))
    assert len(recorder.rows(0, 1)) == 3
    assert [gap.what for gap in recorder.gaps] == ["2 phases"]


def test_a_name_that_is_no_text_costs_nothing():
    class Name(str):
        def __str__(self):
            raise ArithmeticError("code of the user's")

    with gpulab.profile("names", level="sensors") as session:
        for name in (Name("own"), 7, None, "long" * 1000):
            with gpulab.phase(name):
                pass
    own, number, none, long = session.run.phase_rows.text("name").to_list()
    assert (own, number, none, long) == ("own", "int", "NoneType", ("long" * 25))


@pytest.mark.parametrize(("name", "steps"), [("sanity check", 6), ("warm-up", 7)])
def test_an_evaluation_within_a_training_starts_no_step(name, steps):
    """The profiler counts steps as the loop runs, before it can know which DataLoader is trained on."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with gpulab.profile("counted", level="sensors") as session, gpulab.phase("training"):
        with gpulab.phase(name):
            evaluation = iter(DataLoader(TensorDataset(torch.zeros(2)), batch_size=1))
            next(evaluation), next(evaluation)
        for _ in DataLoader(TensorDataset(torch.zeros(6)), batch_size=1):
            weight.grad = torch.ones(1)
            optimizer.step()
        counted = session.live().steps
    assert counted == steps
    assert len(session.run.mark_rows)


def test_a_monitor_and_a_virtual_gpu_note_phases_too():
    monitor = gpulab.monitor("watched")
    try:
        with gpulab.phase("watched phase"):
            pass
    finally:
        run = monitor.stop()
    assert [name for name, _, _ in names_and_ends(run)] == ["watched phase"]
    with gpulab.virtual_gpu("h100") as session:
        layer = torch.nn.Linear(64, 64, device="cuda")
        with gpulab.phase("computation"):
            for _ in range(3):
                layer(torch.zeros(64, 64, device="cuda"))
                gpulab.step()
    ((name, start_ns, end_ns),) = names_and_ends(session.run)
    assert name == "computation"
    assert 0 < start_ns < end_ns <= session.run.span_ns
