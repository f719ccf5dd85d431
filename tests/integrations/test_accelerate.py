"""The context manager for Accelerate: a loop is recorded in every process, and computes what it computes alone."""

import subprocess
import sys

import pytest

import gpulab
from gpulab.analysis.steps.detection import find_steps

accelerate = pytest.importorskip("accelerate", reason="pip install accelerate")
import torch  # noqa: E402

from gpulab.integrations.accelerate import Profile  # noqa: E402
from tests.support.frameworks.hooks_left import hooks_and_threads  # noqa: E402
from tests.support.frameworks.plain_loop import train  # noqa: E402
from tests.support.frameworks.small_data import TRAINING_BATCHES, VALIDATION_BATCHES, work_by_phase  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # of Accelerate and of what it uses


@pytest.fixture
def accelerator():
    return accelerate.Accelerator(cpu=True)


def test_a_block_is_recorded_saved_and_named_by_its_phases(accelerator, tmp_path, capfd):
    with Profile(accelerator, out=tmp_path / "results") as profile:
        train(accelerator, tmp_path / "state")
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["training.gpulab", "training.html"]
    run = gpulab.load(tmp_path / "results" / "training.gpulab")
    assert work_by_phase(run) == {"validation": (VALIDATION_BATCHES, 0), "checkpoint": (0, 0)}
    assert TRAINING_BATCHES - 1 <= len(find_steps(run)) <= TRAINING_BATCHES
    assert {loader.framework for loader in run.loaders} == {"accelerate"}
    printed = capfd.readouterr()
    assert repr(profile.report).splitlines()[0] in printed.err
    assert "%gpu" not in printed.err, "a script has no magics"
    assert "Phases of the run" not in printed.out
    assert "save_state" not in vars(accelerator)


def test_losses_and_weights_are_the_same_to_the_bit_in_the_block(accelerator):
    losses, model = train(accelerator)
    with Profile(accelerator, report=False):
        recorded_losses, recorded = train(accelerator)
    assert recorded_losses == losses
    assert all(torch.equal(one, other) for one, other in zip(recorded.parameters(), model.parameters(), strict=True))


def test_a_block_that_fails_leaves_no_recording_and_no_hook(accelerator):
    before = hooks_and_threads()
    with pytest.raises(ArithmeticError), Profile(accelerator, report=False) as profile:
        train(accelerator, fails_at=7)
    assert hooks_and_threads() == before
    assert profile.run.outcome == "ArithmeticError"
    assert "save_state" not in vars(accelerator)


def test_under_another_recording_it_only_names_phases(accelerator, tmp_path):
    with gpulab.profile("cell", level="sensors") as session, Profile(accelerator, out=tmp_path / "results") as profile:
        train(accelerator, tmp_path / "state")
    assert profile.run is None
    assert not (tmp_path / "results").exists()
    assert set(work_by_phase(session.run)) == {"validation", "checkpoint"}


def test_a_folder_that_cannot_be_created_is_an_error_before_the_training(accelerator, tmp_path):
    before = hooks_and_threads()
    (tmp_path / "file").write_text("")
    with pytest.raises(gpulab.GpulabError, match="cannot be created"), Profile(accelerator, out=tmp_path / "file"):
        pytest.fail("the block must not run")
    assert hooks_and_threads() == before
    assert "save_state" not in vars(accelerator)


def test_a_run_that_cannot_be_saved_costs_a_warning_and_not_the_training(accelerator, tmp_path):
    profile = Profile(accelerator, out=tmp_path / "results", report=False)
    profile.__enter__()
    losses, _ = train(accelerator)
    (tmp_path / "results").rmdir()
    (tmp_path / "results").write_text("")
    with pytest.warns(UserWarning, match="gpulab"):
        profile.__exit__(None, None, None)
    assert len(losses) == TRAINING_BATCHES
    assert profile.run.outcome == "ok"


@pytest.mark.full
def test_each_of_two_ranks_writes_a_run_and_one_prints_a_report(tmp_path):
    out = tmp_path / "results"
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.frameworks.accelerate_ranks", str(out)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    assert sorted(path.name for path in out.iterdir()) == ["rank0.gpulab", "rank1.gpulab", "training.html"]
    runs = gpulab.load(out)
    assert [run.rank for run in runs] == [0, 1]
    for run in runs:  # Accelerate gives every second batch to each process
        assert TRAINING_BATCHES // 2 - 1 <= len(find_steps(run)) <= TRAINING_BATCHES // 2
        assert work_by_phase(run)["validation"][1] == 0
    assert ended.stderr.count("Phases of the run") == 1
