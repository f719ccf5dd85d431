"""The callback of Lightning: a fit is recorded, saved and named by its phases, and computes what it computes alone."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import gpulab
from gpulab.analysis.steps.detection import find_steps
from gpulab.files.ranks import Ranks

pl = pytest.importorskip("lightning.pytorch", reason="pip install lightning")
import torch  # noqa: E402
from torch import nn  # noqa: E402

from gpulab.integrations.lightning import Profile  # noqa: E402
from tests.support.frameworks.hooks_left import hooks_and_threads  # noqa: E402
from tests.support.frameworks.small_data import (  # noqa: E402
    TRAINING_BATCHES,
    VALIDATION_BATCHES,
    network,
    training_loader,
    validation_loader,
    work_by_phase,
)

# Lightning warns of few workers and of what it uses of PyTorch.
pytestmark = pytest.mark.filterwarnings("default")
EPOCHS, SANITY_BATCHES = 3, 2


class Classifier(pl.LightningModule):
    def __init__(self, fails_at=None):
        super().__init__()
        self.network, self.losses, self.fails_at = network(), [], fails_at

    def training_step(self, batch, _):
        if self.global_step == self.fails_at:
            raise ArithmeticError("the training failed")
        loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, _):
        self.log("loss", nn.functional.cross_entropy(self.network(batch[0]), batch[1]))

    test_step = validation_step

    def predict_step(self, batch, _):
        return self.network(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(folder, *callbacks, module=pl, **settings):
    return module.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        callbacks=list(callbacks),
        default_root_dir=folder,
        **{"logger": False, "enable_progress_bar": False, "enable_model_summary": False, **settings},
    )


def fitted(folder, *callbacks, **settings):
    model = Classifier()
    trainer(folder, *callbacks, **settings).fit(model, training_loader(), validation_loader())
    return model


def test_a_fit_has_the_batches_that_were_configured_in_each_phase_and_every_training_batch_is_a_step(tmp_path):
    profile = Profile(report=False)
    fitted(tmp_path, profile)
    assert profile.run.outcome == "ok"
    assert work_by_phase(profile.run) == {
        "training": (EPOCHS * TRAINING_BATCHES, EPOCHS * TRAINING_BATCHES),
        "validation": (EPOCHS * VALIDATION_BATCHES, 0),
        "sanity check": (SANITY_BATCHES, 0),
        "checkpoint": (0, 0),
    }
    steps = find_steps(profile.run)
    assert steps.detected_by == "DataLoader"
    assert EPOCHS * TRAINING_BATCHES - 1 <= len(steps) <= EPOCHS * TRAINING_BATCHES


def test_validation_within_an_epoch_is_no_training_step(tmp_path):
    profile = Profile(level="sensors", report=False)
    fitted(tmp_path, profile, val_check_interval=TRAINING_BATCHES // 3, enable_checkpointing=False)
    assert work_by_phase(profile.run)["validation"] == (3 * EPOCHS * VALIDATION_BATCHES, 0)
    assert len(find_steps(profile.run)) <= EPOCHS * TRAINING_BATCHES


def test_losses_and_weights_are_the_same_to_the_bit_with_the_callback(tmp_path):
    plain, recorded = fitted(tmp_path), fitted(tmp_path, Profile(report=False))
    assert len(plain.losses) == EPOCHS * TRAINING_BATCHES
    assert recorded.losses == plain.losses
    assert all(torch.equal(one, other) for one, other in zip(recorded.parameters(), plain.parameters(), strict=True))


def test_run_and_report_are_saved_and_the_report_is_printed_to_stderr_only(tmp_path, capfd):
    profile = Profile(out=tmp_path / "results", name="mine", level="sensors")
    fitted(tmp_path, profile)
    printed = capfd.readouterr()
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["mine.gpulab", "mine.html"]
    run = gpulab.load(tmp_path / "results" / "mine.gpulab")
    assert work_by_phase(run) == work_by_phase(profile.run)
    assert repr(profile.report).splitlines()[0] in printed.err
    assert "%gpu" not in printed.err, "a script has no magics"
    assert "gpulab" not in printed.out
    assert "Phases of the run" not in printed.out


@pytest.mark.parametrize("place", ["step", "another callback"])
def test_a_training_that_fails_leaves_no_recording_and_no_hook(tmp_path, place):
    class Failing(pl.Callback):
        def on_validation_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                raise ArithmeticError("the callback failed")

    before = hooks_and_threads()
    profile = Profile(out=tmp_path, report=False)
    others = [Failing()] if place == "another callback" else []
    lightning = trainer(tmp_path, profile, *others)
    with pytest.raises(ArithmeticError):
        lightning.fit(Classifier(fails_at=7 if not others else None), training_loader(), validation_loader())
    assert hooks_and_threads() == before
    assert "save_checkpoint" not in vars(lightning)
    assert profile.run.outcome == "ArithmeticError"
    assert gpulab.load(tmp_path / "fit.gpulab").outcome == "ArithmeticError"
    fitted(tmp_path, profile)
    assert profile.run.outcome == "ok"
    assert hooks_and_threads() == before


def test_under_another_recording_it_only_names_phases(tmp_path):
    profile, model = Profile(out=tmp_path / "results"), Classifier()
    lightning = trainer(tmp_path, profile, enable_checkpointing=False)
    with gpulab.profile("cell", level="sensors") as session:
        lightning.fit(model, training_loader(), validation_loader())
        lightning.test(model, validation_loader())
        lightning.predict(model, validation_loader())
    assert profile.run is None
    assert profile.report is None
    assert not (tmp_path / "results").exists()
    work = work_by_phase(session.run)
    assert work["training"] == (EPOCHS * TRAINING_BATCHES, EPOCHS * TRAINING_BATCHES)
    assert work["test"] == work["prediction"] == (VALIDATION_BATCHES, 0)


def test_a_prediction_alone_has_steps(tmp_path):
    lightning = trainer(tmp_path, Profile(), enable_checkpointing=False)
    with gpulab.profile("prediction", level="sensors") as session:
        lightning.predict(Classifier(), training_loader())
    assert len(find_steps(session.run)) >= TRAINING_BATCHES - 1


def test_findings_are_addressed_to_lightning(tmp_path):
    profile = Profile(level="sensors", report=False)
    fitted(tmp_path, profile)
    assert {loader.framework for loader in profile.run.loaders} == {"lightning"}


def test_it_works_with_the_package_pytorch_lightning(tmp_path):
    old = pytest.importorskip("pytorch_lightning", reason="pip install pytorch-lightning")

    class Model(old.LightningModule):
        training_step, configure_optimizers = Classifier.training_step, Classifier.configure_optimizers

        def __init__(self):
            super().__init__()
            self.network, self.losses, self.fails_at = network(), [], None

    profile = Profile(level="sensors", report=False)
    trainer(tmp_path, profile, module=old, enable_checkpointing=False).fit(Model(), training_loader())
    assert work_by_phase(profile.run)["training"] == (EPOCHS * TRAINING_BATCHES, EPOCHS * TRAINING_BATCHES)


def test_the_callback_can_be_pickled():
    assert pickle.loads(pickle.dumps(Profile(out="results"))).run is None


@pytest.mark.full
def test_each_of_two_ranks_writes_a_run_and_one_prints_a_report(tmp_path):
    out = tmp_path / "results"
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.frameworks.lightning_ranks", str(out)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    assert sorted(path.name for path in out.iterdir()) == ["fit.html", "rank0.gpulab", "rank1.gpulab"]
    runs = gpulab.load(out)
    assert isinstance(runs, Ranks)
    assert [run.rank for run in runs] == [0, 1]
    for run in runs:  # DistributedSampler halves the batches
        assert work_by_phase(run)["training"] == (TRAINING_BATCHES // 2, TRAINING_BATCHES // 2)
    assert ended.stderr.count("Phases of the run") == 1


def test_the_numbers_of_the_run_go_to_the_loggers_of_the_trainer(tmp_path):
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoardLogger(tmp_path, name="board")
    table = CSVLogger(tmp_path, name="table")
    profile = Profile(report=False, log=True)
    fitted(tmp_path, profile, logger=[board, table])
    step_s = profile.run.summary()["step_s"]
    events = EventAccumulator(board.log_dir)
    events.Reload()
    assert events.Scalars("gpulab/step_s")[-1].value == pytest.approx(step_s, rel=1e-5)
    assert "gpulab/step_s" in (Path(table.log_dir) / "metrics.csv").read_text()


def test_nothing_is_logged_unless_it_is_asked_for(tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    table = CSVLogger(tmp_path, name="table")
    fitted(tmp_path, Profile(report=False), logger=table)
    path = Path(table.log_dir) / "metrics.csv"
    assert not path.exists() or "gpulab" not in path.read_text()
