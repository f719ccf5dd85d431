"""The callback of Transformers: a training is recorded and named by its phases, and ends also where it fails."""

import pickle

import pytest

import gpulab
from gpulab.analysis.steps.detection import find_steps

transformers = pytest.importorskip("transformers", reason="pip install transformers accelerate")
pytest.importorskip("accelerate", reason="the Trainer of Transformers needs it: pip install accelerate")
import torch  # noqa: E402
from torch import nn  # noqa: E402

from gpulab.integrations.transformers import Profile  # noqa: E402
from tests.support.frameworks.hooks_left import hooks_and_threads  # noqa: E402
from tests.support.frameworks.small_data import (  # noqa: E402
    BATCH_SIZE,
    TRAINING_BATCHES,
    VALIDATION_BATCHES,
    dataset,
    network,
    work_by_phase,
)

pytestmark = pytest.mark.filterwarnings("default")  # of Transformers and of what it uses
EPOCHS = 3
UPDATES = EPOCHS * TRAINING_BATCHES


class Classifier(nn.Module):
    def __init__(self, fails_at=None):
        super().__init__()
        self.network, self.losses, self.fails_at = network(), [], fails_at

    def forward(self, inputs, labels):
        logits = self.network(inputs)
        loss = nn.functional.cross_entropy(logits, labels)
        if self.training:
            self.losses.append(loss.item())
            if len(self.losses) == self.fails_at:
                raise ArithmeticError("the training failed")
        return {"loss": loss, "logits": logits}


def rows(batches, seed):
    return [{"inputs": inputs, "labels": label} for inputs, label in dataset(batches, seed)]


def trainer(folder, *callbacks, model=None, kind=transformers.Trainer, **settings):
    arguments = transformers.TrainingArguments(
        str(folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH_SIZE,
        per_device_eval_batch_size=BATCH_SIZE,
        disable_tqdm=True,
        use_cpu=True,
        **{"report_to": [], "eval_strategy": "epoch", "save_strategy": "no", **settings},
    )
    return kind(
        model or Classifier(),
        arguments,
        train_dataset=rows(TRAINING_BATCHES, 1),
        eval_dataset=rows(VALIDATION_BATCHES, 2),
        callbacks=list(callbacks),
    )


def test_a_training_has_the_batches_that_were_configured_in_each_phase_and_every_update_is_a_step(tmp_path):
    profile = Profile(report=False)
    trainer(tmp_path, profile, save_strategy="epoch").train()
    assert profile.run.outcome == "ok"
    assert work_by_phase(profile.run) == {
        "training": (UPDATES, UPDATES),
        "evaluation": (EPOCHS * VALIDATION_BATCHES, 0),
        "checkpoint": (0, 0),
    }
    saved = profile.run.phases.query("name == 'checkpoint'")
    assert len(saved) == EPOCHS
    assert UPDATES - 1 <= len(find_steps(profile.run)) <= UPDATES


def test_evaluations_between_steps_are_no_steps_and_accumulated_batches_form_one(tmp_path):
    profile = Profile(level="sensors", report=False)
    settings = {"gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 3}
    trainer(tmp_path, profile, **settings).train()
    updates = UPDATES // 2
    assert work_by_phase(profile.run)["evaluation"] == (updates // 3 * VALIDATION_BATCHES, 0)
    assert updates - 1 <= len(find_steps(profile.run)) <= updates


def test_losses_and_weights_are_the_same_to_the_bit_with_the_callback(tmp_path):
    models = [Classifier(), Classifier()]
    for model, callbacks in zip(models, ([], [Profile(report=False)]), strict=True):
        trainer(tmp_path, *callbacks, model=model).train()
    plain, recorded = models
    assert len(plain.losses) == UPDATES
    assert recorded.losses == plain.losses
    assert all(torch.equal(one, other) for one, other in zip(recorded.parameters(), plain.parameters(), strict=True))


def test_run_and_report_are_saved_and_the_report_is_printed_to_stderr_only(tmp_path, capfd):
    profile = Profile(out=tmp_path / "results", level="sensors")
    trainer(tmp_path, profile).train()
    printed = capfd.readouterr()
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["train.gpulab", "train.html"]
    assert work_by_phase(gpulab.load(tmp_path / "results" / "train.gpulab")) == work_by_phase(profile.run)
    assert repr(profile.report).splitlines()[0] in printed.err
    assert "%gpu" not in printed.err, "a script has no magics"
    assert "Phases of the run" not in printed.out


def test_a_training_that_fails_leaves_no_recording_and_no_hook(tmp_path):
    before = hooks_and_threads()
    profile = Profile(out=tmp_path, report=False)
    failing = trainer(tmp_path, profile, model=Classifier(fails_at=15))
    with pytest.raises(ArithmeticError, match="the training failed"):
        failing.train()
    assert hooks_and_threads() == before
    assert gpulab.load(tmp_path / "train.gpulab").outcome == "ArithmeticError"
    assert work_by_phase(profile.run)["evaluation"] == (VALIDATION_BATCHES, 0)
    failing.train()
    assert profile.run.outcome == "ok"
    assert hooks_and_threads() == before


def test_a_training_that_fails_before_it_begins_leaves_nothing_that_records_a_later_one(tmp_path):
    before = hooks_and_threads()
    profile = Profile(report=False)
    watched = trainer(tmp_path, profile)
    watched.train_dataset = None
    with pytest.raises(ValueError, match="train_dataset"):
        watched.train()
    assert hooks_and_threads() == before
    assert profile.run is None


def test_a_callback_that_is_added_later_warns_and_records_the_next_training(tmp_path):
    profile = Profile(level="sensors", report=False)
    late = trainer(tmp_path)
    late.add_callback(profile)
    with pytest.warns(UserWarning, match="not recorded"):
        late.train()
    assert profile.run is None
    late.train()
    assert work_by_phase(profile.run)["evaluation"] == (EPOCHS * VALIDATION_BATCHES, 0)


def test_under_another_recording_it_only_names_phases(tmp_path):
    profile = Profile(out=tmp_path / "results")
    watched = trainer(tmp_path, profile)
    with gpulab.profile("cell", level="sensors") as session:
        watched.train()
        watched.predict(rows(VALIDATION_BATCHES, 4))
    assert profile.run is None
    assert not (tmp_path / "results").exists()
    work = work_by_phase(session.run)
    assert work["training"] == (UPDATES, UPDATES)
    assert work["prediction"] == (VALIDATION_BATCHES, 0)


def test_an_evaluation_alone_has_steps(tmp_path):
    watched = trainer(tmp_path, Profile())
    with gpulab.profile("evaluation", level="sensors") as session:
        watched.evaluate(rows(TRAINING_BATCHES, 4))
    assert work_by_phase(session.run) == {"evaluation": (TRAINING_BATCHES, 0)}
    assert len(find_steps(session.run)) >= TRAINING_BATCHES - 1


@pytest.mark.parametrize("callbacks", [[], [Profile()]], ids=["without the callback", "with it"])
def test_findings_are_addressed_to_transformers_and_not_to_accelerate(tmp_path, callbacks):
    watched = trainer(tmp_path, *callbacks)
    with gpulab.profile("framework", level="sensors") as session:
        watched.train()
    assert {loader.framework for loader in session.run.loaders} == {"transformers"}


def test_a_trainer_of_the_users_keeps_its_methods_and_their_documentation(tmp_path):
    class Mine(transformers.Trainer):
        def evaluate(self, *arguments, **options):
            """Twice."""
            super().evaluate(*arguments, **options)
            return super().evaluate(*arguments, **options)

    profile = Profile(level="sensors", report=False)
    mine = trainer(tmp_path, profile, kind=Mine)
    mine.train()
    assert work_by_phase(profile.run)["evaluation"] == (2 * EPOCHS * VALIDATION_BATCHES, 0)
    assert mine.evaluate.__doc__ == "Twice."
    assert mine.train.__name__ == "train"


def test_the_callback_can_be_pickled():
    assert pickle.loads(pickle.dumps(Profile(out="results"))).run is None


def test_the_numbers_of_the_run_go_to_the_trackers_of_the_trainer(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    profile = Profile(report=False, log=True)
    trained = trainer(tmp_path, profile, report_to=["tensorboard"])
    trained.train()
    assert any("gpulab/step_s" in entry for entry in trained.state.log_history)
    found = []
    for file in tmp_path.rglob("events.out.tfevents.*"):
        events = EventAccumulator(str(file))
        events.Reload()
        found += [tag for tag in events.Tags()["scalars"] if "gpulab/step_s" in tag]
    assert found
