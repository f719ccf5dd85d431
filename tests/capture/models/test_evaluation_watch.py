"""Which code evaluates: by the name of its function, or by the eval mode of the trained models."""

import sys
import time

import pytest

import gpulab
from gpulab.capture.hooks.evaluations.evaluation_watch import EvaluationWatch
from gpulab.phase_names import EVAL_MODE

torch = pytest.importorskip("torch")


class Policy(torch.nn.Module):
    """A model whose forward pass runs a function."""

    def __init__(self, inside=lambda: None):
        super().__init__()
        self.layer, self.inside = torch.nn.Linear(2, 2), inside

    def forward(self, x):
        self.inside()
        return self.layer(x)


class Stacks:
    """Takes what the watch says of its caller's stack."""

    def __init__(self, *, trained=True):
        self.model = Policy(self.look)
        self.watch, self.evidence = EvaluationWatch(), []
        if trained:
            self.train_one_step()

    def train_one_step(self):
        self.watch.add_training(sys._getframe(), self.model)

    def look(self):
        self.evidence.append(self.watch.evaluation(sys._getframe()))

    def validate(self):
        self.look()

    def estimate_loss(self):
        self.look()

    def collect_rollouts(self):
        self.model(torch.ones(1, 2))

    def generate(self):
        self.look()

    def score(self):
        self.model(torch.ones(1, 2))


@pytest.mark.parametrize("name", ["validate", "estimate_loss"])
def test_a_function_evaluates_by_its_name(name):
    stacks = Stacks()
    getattr(stacks, name)()
    assert stacks.evidence == [name]


def test_other_functions_do_not_evaluate_while_the_model_is_in_training_mode():
    stacks = Stacks()
    stacks.score()
    stacks.generate()
    assert stacks.evidence == [None, None]


def test_in_eval_mode_other_functions_evaluate_unless_they_act_or_generate():
    stacks = Stacks()
    stacks.model.eval()
    stacks.score()
    stacks.collect_rollouts()
    stacks.generate()
    assert stacks.evidence == [EVAL_MODE, None, None]


def test_one_of_two_trained_models_in_eval_mode_is_no_evidence():
    stacks, other = Stacks(), Policy()
    stacks.watch.add_training(sys._getframe(), other)
    stacks.model.eval()
    stacks.score()
    other.eval()
    stacks.score()
    assert stacks.evidence == [None, EVAL_MODE]


def test_a_function_in_which_an_optimizer_steps_does_not_evaluate():
    """As a test function around a training loop."""
    stacks = Stacks(trained=False)

    def test_training():
        stacks.look()
        stacks.watch.add_training(sys._getframe(), stacks.model)
        stacks.look()

    test_training()
    assert stacks.evidence[1] is None


def test_models_that_no_longer_exist_are_not_kept():
    stacks = Stacks()
    stacks.model.eval()
    del stacks.model
    stacks.look()
    assert stacks.evidence == [None]


def test_a_recording_has_the_function_that_evaluated():
    model = Policy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def validate(until):
        deadline = time.monotonic() + 60
        while not until() and time.monotonic() < deadline:
            model(torch.ones(1, 2))
            time.sleep(0.001)

    with gpulab.profile("evaluates", level="sensors") as session:
        samples = session._sensors._host_samples
        for _ in range(4):
            model(torch.ones(4, 2)).sum().backward()
            optimizer.step()
        count = len(samples)
        validate(lambda: len(samples) >= count + 3)
    assert "validate" in session.run.host_rows.text("evaluation").to_list()
