"""Labs of notebook 11: counted costs against formulas, the front against brute force, ASHA, NumPy against PyTorch."""

from __future__ import annotations

import importlib
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from gpulab import GpulabError
from gpulab.lessons.labs.kernels.architecture import (
    candidates,
    frameworks,
    halving,
    network_costs,
    optimizers,
    pareto,
    residual_nets,
)
from gpulab.lessons.labs.steps.large_batches import pattern_images

# Counted costs


def test_the_cost_of_a_convolution_is_that_of_the_formula():
    cost = network_costs.network_cost(partial(nn.Conv2d, 64, 128, 3, padding=1, bias=False), (2, 64, 32, 32))
    assert cost.parameters == 64 * 128 * 9
    assert cost.flops == 2 * 2 * 32 * 32 * 64 * 128 * 9
    depthwise = network_costs.network_cost(
        partial(nn.Conv2d, 64, 64, 3, padding=1, groups=64, bias=False), (2, 64, 32, 32)
    )
    assert depthwise.flops == 2 * 2 * 32 * 32 * 64 * 9


def test_saved_bytes_of_a_linear_layer_are_those_of_its_input():
    cost = network_costs.network_cost(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), (4, 8))
    assert cost.saved_bytes == 2 * 4 * 8 * 4


def test_twice_the_width_has_four_times_the_weights():
    parameters = [network_costs.scaled_cost(width=width).parameters for width in (1, 2)]
    assert parameters[1] / parameters[0] == pytest.approx(4, rel=0.03)


def test_resolution_changes_arithmetic_but_no_weight():
    one, two = network_costs.scaled_cost(), network_costs.scaled_cost(resolution=2)
    assert two.parameters == one.parameters
    assert two.flops / one.flops == pytest.approx(4, rel=0.01)


# Candidates and the front


@pytest.mark.parametrize(("kind", "weights"), [("full", 16 * 16 * 9), ("depthwise", 16 * 9 + 16 * 16)])
def test_a_candidate_has_blocks_of_its_kind(kind, weights):
    one, two = (candidates.candidate_network(kind, 16, blocks) for blocks in (1, 2))
    count = [sum(parameter.numel() for parameter in network.parameters()) for network in (one, two)]
    assert count[1] - count[0] == weights + 2 * 16  # BatchNorm has two numbers per channel


def test_a_trained_candidate_is_better_than_guessing_on_both_halves_of_the_test_images():
    data = pattern_images(rows=512, test_rows=512)
    network = candidates.candidate_network("full", 8, 1)
    assert candidates.trained_error(network, data, 1e-2) < 0.6
    assert candidates.fresh_error(network, data) < 0.6


def test_a_missing_optuna_is_reported_with_the_way_to_install_it(monkeypatch):
    def import_module(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(GpulabError, match="pip install optuna"):
        candidates.load_optuna()


def test_optuna_is_loaded():
    optuna = pytest.importorskip("optuna")
    assert candidates.load_optuna() is optuna
    assert optuna.logging.get_verbosity() == optuna.logging.WARNING


def test_one_result_dominates_another_if_it_is_nowhere_worse_and_somewhere_better():
    assert pareto.dominates((1, 2), (1, 3))
    assert not pareto.dominates((1, 2), (1, 2))
    assert not pareto.dominates((1, 4), (2, 3))


def test_the_front_is_that_of_brute_force():
    results = [tuple(row) for row in np.random.default_rng(0).integers(0, 6, (40, 3)).tolist()]
    front = pareto.pareto_front(results)
    assert front == sorted(front, key=lambda result: result[0])
    worse = {
        b for a in results for b in results if a != b and all(x <= y for x, y in zip(a, b, strict=True))
    }  # equal results dominate each other in neither direction
    assert set(front) == set(results) - worse


def test_optuna_has_the_same_front():
    optuna = pytest.importorskip("optuna")
    candidates.load_optuna()
    study = optuna.create_study(directions=["minimize"] * 2, sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(lambda trial: [round(trial.suggest_float(name, 0, 1), 1) for name in "ab"], n_trials=30)
    results = [tuple(trial.values) for trial in study.trials]
    assert set(pareto.pareto_front(results)) == {tuple(trial.values) for trial in study.best_trials}


@pytest.mark.parametrize(("chosen", "count"), [((0.2, 5, 5), 3), ((0.3, 4, 4), 2), ((0.1, 9, 5), 1), ((0.1, 9, 9), 0)])
def test_a_choice_has_to_be_within_both_limits_and_the_best_there(chosen, count):
    front = [(0.1, 9, 5), (0.1, 9, 9), (0.2, 5, 5), (0.3, 4, 4)]
    assert pareto.conditions_met(chosen, front, largest_time=6, largest_memory=6) == count


def test_no_choice_is_the_best_within_limits_that_none_meets():
    assert pareto.conditions_met((0.1, 5, 9), [(0.1, 5, 9)], largest_time=6, largest_memory=6) == 1


def test_the_plot_of_a_front_says_its_points():
    chart = pareto.front_plot(
        "A front", {"front": [(1.0, 2.0)], "all": [(3.0, 4.0), (5.0, 6.0)]}, x="us", y="%", source="x"
    )
    assert "front: 1: 2; all: 3: 4, 5: 6" in chart.alt
    assert len(chart.table.rows) == 3


# ASHA


def test_a_grid_has_all_combinations_once_in_a_fixed_order():
    grid = halving.grid_of((0.1, 0.2), (8, 16), (0.0, 0.5))
    assert len(set(grid)) == len(grid) == 8
    assert grid == halving.grid_of((0.1, 0.2), (8, 16), (0.0, 0.5))


def asha_epochs(promotable, quality):
    """Run ASHA on combinations whose accuracy is `quality` of their learning rate; return result and epochs."""
    grid, done = halving.grid_of([n / 100 for n in range(1, 28)], (8,), (0.0,)), {}

    def train(configuration, epochs):
        done[configuration] = epochs
        return quality(configuration.lr)

    return halving.run_asha(grid, promotable, train), sum(done.values())


def test_asha_keeps_the_best_if_early_accuracy_tells_the_truth():
    result, epochs = asha_epochs(lambda standings: standings[: len(standings) // 3], lambda lr: lr)
    assert result.best[0] == pytest.approx(0.27)
    assert [len(rung) >= least for rung, least in zip(result.rungs.values(), (27, 9, 3), strict=True)] == [True] * 3
    assert 27 + 9 * 2 + 3 * 6 <= epochs < 27 * 9 / 2


def test_asha_that_promotes_all_trains_everything():
    _, epochs = asha_epochs(lambda standings: standings, lambda lr: lr)
    assert epochs == 27 * 9


def test_asha_that_promotes_none_has_no_best():
    result, epochs = asha_epochs(lambda standings: [], lambda lr: lr)
    assert result.best is None
    assert epochs == 27


@pytest.mark.parametrize("promote", [lambda standings: None, lambda standings: [one for _, one in standings]])
def test_asha_says_what_a_selection_has_to_return(promote):
    with pytest.raises(GpulabError, match="pairs"):
        asha_epochs(promote, lambda lr: lr)


def test_asha_promotes_before_all_have_run():
    started = []

    def train(configuration, epochs):
        started.append(epochs)
        return configuration.lr

    halving.run_asha(
        halving.grid_of([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], (8,), (0.0,)), lambda all_: all_[: len(all_) // 3], train
    )
    assert started.index(3) == 3  # after the third combination, one is in the best third


def test_a_training_that_is_continued_equals_one_without_a_break():
    data = pattern_images(rows=256, test_rows=256)
    configuration = halving.Configuration(lr=0.01, batch=32, weight_decay=0.0)
    broken, whole = halving.Trainings(data=data), halving.Trainings(data=data)
    broken.train(configuration, 1)
    assert broken.train(configuration, 3) == whole.train(configuration, 3)
    assert broken.epochs == whole.epochs == 3
    assert broken.samples == {32: 3 * 256}
    assert broken.samples_per_s(32) > 0


# Optimizers


@pytest.mark.parametrize(
    ("name", "state_bytes"),
    [("SGD", 0), ("SGD with momentum", 4), ("LARS", 4), ("AdamW", 8), ("Adafactor", 2 * 4 * 64 / 64**2)],
)
def test_the_state_of_an_optimizer_has_the_bytes_of_its_formula(name, state_bytes):
    counts = optimizers.optimizer_cost(optimizers.OPTIMIZERS[name], side=64)
    assert counts.state_bytes == pytest.approx(state_bytes)
    assert counts.operators > 0


def test_a_step_of_lars_changes_a_matrix_by_the_rate_times_its_norm():
    weight = torch.full((4, 4), 2.0, requires_grad=True)
    optimizer = optimizers.OPTIMIZERS["LARS"]([weight], 0.1)
    weight.grad = torch.eye(4)
    before = weight.detach().clone()
    optimizer.step()
    assert (weight.detach() - before).norm().item() == pytest.approx(0.1 * before.norm().item())


def test_a_rate_of_almost_zero_learns_nothing():
    data = pattern_images(rows=512, test_rows=512)
    accuracies = optimizers.accuracy_by_rate(optimizers.OPTIMIZERS["AdamW"], (1e-9, 1e-2), data)
    assert accuracies[1e-9] < 0.3 < accuracies[1e-2]


# Distillation


def test_a_student_has_the_parts_that_can_be_copied_from_a_teacher():
    teacher, student = residual_nets.residual_classifier(4, 0), residual_nets.residual_classifier(2, 1)
    student.stem.load_state_dict(teacher.stem.state_dict())
    student.head.load_state_dict(teacher.head.state_dict())
    for index, layer in enumerate(student.layers):
        layer.load_state_dict(teacher.layers[2 * index].state_dict())
    x = torch.randn(3, 64)
    expected = teacher.head(teacher.layers[2](teacher.layers[0](teacher.stem(x))))
    assert torch.allclose(student(x), expected)


def softened(logits):
    return functional.log_softmax(logits / 2, dim=1)


@pytest.mark.parametrize(
    ("loss", "is_divergence"),
    [
        (lambda s, t: 4 * functional.kl_div(softened(s), softened(t), reduction="batchmean", log_target=True), True),
        (lambda s, t: 4 * functional.cross_entropy(s / 2, softened(t).exp()), True),  # differs by a constant
        (lambda s, t: 4 * functional.kl_div(softened(t), softened(s), reduction="batchmean", log_target=True), False),
        (lambda s, t: functional.kl_div(softened(s), softened(t), reduction="batchmean", log_target=True), False),
        (lambda s, t: functional.mse_loss(s, t), False),
        (lambda s, t: 0 * s.sum(), False),
    ],
    ids=["divergence", "cross-entropy", "reversed", "without the factor", "squared error", "nothing"],
)
def test_the_gradient_tells_the_divergence_from_other_losses(loss, is_divergence):
    assert (residual_nets.divergence_gradient_error(loss, temperature=2.0) < 0.01) is is_divergence


def test_fitting_lowers_the_loss():
    data = pattern_images(rows=512, test_rows=64)

    def loss(model, rows):
        return functional.cross_entropy(model(data.inputs[rows]), data.labels[rows])

    model = residual_nets.residual_classifier(2, 0)
    before = loss(model, torch.arange(512)).item()
    assert loss(residual_nets.fit(model, loss, 512, epochs=2), torch.arange(512)).item() < 0.8 * before


# Frameworks


def test_patches_are_those_of_unfold():
    images = torch.randn(2, 3, 8, 8)
    expected = functional.unfold(images, 3, padding=1).transpose(1, 2)
    assert np.allclose(frameworks.patches(np, images.numpy()), expected)


@pytest.mark.parametrize("name", ["CNN", "LSTM"])
def test_array_code_computes_what_pytorch_computes(name):
    module, images = frameworks.modules()[name], torch.randn(5, 1, 8, 8)
    code = {
        "CNN": partial(frameworks.cnn_logits, convolve=lambda x, weight, bias: x @ weight.T + bias),
        "LSTM": frameworks.lstm_logits,
    }[name]
    logits = code(np, images.numpy(), frameworks.weight_arrays(module))
    assert np.allclose(logits, module(images).detach(), atol=1e-5)
    labels = torch.tensor([0, 1, 2, 3, 4])
    assert frameworks.cross_entropy(logits, labels) == pytest.approx(
        functional.cross_entropy(module(images), labels).item(), abs=1e-5
    )


def test_a_framework_that_is_not_installed_has_no_runner(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert frameworks.jax_runner(frameworks.lstm_logits, torch.zeros(1, 1, 8, 8), {}) is None


def test_a_measured_framework_has_loss_and_speed():
    result = frameworks.measure_framework(lambda: np.zeros((4, 10)), torch.tensor([0, 1, 2, 3]))
    assert result.loss == pytest.approx(np.log(10))
    assert result.samples_per_s > 0
    assert result.first_call_s >= 0
