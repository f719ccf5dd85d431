"""Lesson 04: the images, the loop's parts, weight noise, gradients by batch, and the critical batch size."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gpulab.lessons.labs.kernels import gradient_noise  # noqa: E402
from gpulab.lessons.labs.steps import batch_gradients, large_batches, weight_noise  # noqa: E402


@pytest.fixture(scope="module")
def data():
    return large_batches.pattern_images(rows=512, test_rows=256)


def test_images_are_the_same_every_time_and_test_images_are_others(data):
    again = large_batches.pattern_images(rows=512, test_rows=256)
    assert torch.equal(data.inputs, again.inputs)
    assert torch.equal(data.test_labels, again.test_labels)
    assert data.inputs.shape == (512, 64)
    assert data.inputs.dtype == torch.float32
    assert not torch.equal(data.inputs[:256], data.test_inputs)
    assert set(data.labels.tolist()) == set(range(10))


def test_the_nearest_shifted_pattern_gives_the_label_of_an_image_with_little_noise():
    images = large_batches.pattern_images(rows=200, test_rows=1, noise=0.01)
    patterns = np.random.default_rng(1234).normal(0, 1, (10, 4, 4)).repeat(2, 1).repeat(2, 2)
    shifts = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
    candidates = np.stack([np.roll(pattern, shift, (0, 1)).ravel() for pattern in patterns for shift in shifts])
    candidates /= np.linalg.norm(candidates, axis=1, keepdims=True)  # the contrast varies, the direction does not
    nearest = np.argmax(images.inputs.numpy() @ candidates.T, axis=1) // len(shifts)
    assert np.array_equal(nearest, images.labels.numpy())


def test_a_classifier_depends_on_its_seed_and_has_the_stated_weights():
    one, same, other = (large_batches.pattern_classifier(seed) for seed in (0, 0, 1))
    assert torch.equal(one[0].weight, same[0].weight)
    assert not torch.equal(one[0].weight, other[0].weight)
    assert float(one[0].weight.detach().std()) == pytest.approx(0.3, rel=0.05)
    assert 0.3 / math.sqrt(2 / 64) == pytest.approx(1.7, abs=0.01)  # the text: 1.7 times He initialization
    assert sum(isinstance(part, torch.nn.BatchNorm1d) for part in large_batches.pattern_classifier(0, True)) == 2


@pytest.mark.parametrize("batch", [32, 100, 512])
def test_an_epoch_of_shuffled_batches_has_each_row_once(batch):
    batches = list(large_batches.shuffled_batches(512, batch, 2, seed=3))
    assert len(batches) == 2 * math.ceil(512 / batch)
    first, second = torch.cat(batches[: len(batches) // 2]), torch.cat(batches[len(batches) // 2 :])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(512))
    assert not torch.equal(first, second)


def test_the_order_of_rows_does_not_depend_on_the_batch_size():
    orders = [torch.cat(list(large_batches.shuffled_batches(512, batch, 1, seed=5))) for batch in (8, 512)]
    assert torch.equal(*orders)


@pytest.mark.parametrize("updates", [1, 4, 24])
def test_a_ramp_is_what_pytorch_schedules(updates):
    layer = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / updates, total_iters=max(1, updates - 1))
    factor = large_batches.ramp(updates)
    for update in range(updates + 3):
        expected = optimizer.param_groups[0]["lr"] if updates > 1 else 1.0
        assert factor(update) == pytest.approx(expected)
        optimizer.step()
        schedule.step()


def test_accuracy_counts_correct_rows_and_restores_the_mode_of_the_model():
    class Fixed(torch.nn.Module):
        def forward(self, x):
            assert not self.training
            return torch.eye(3)[x]

    model = Fixed()
    assert large_batches.correct_frac(model, torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 2, 0])) == 0.75
    assert model.training


def test_an_update_takes_cpu_time(data):
    assert 0 < large_batches.update_cpu_s(data, 8, repeats=3) < 1


def test_the_mean_gradient_of_batches_is_that_of_all_rows(data):
    model = large_batches.pattern_classifier(0)
    gradients = batch_gradients.gradients_by_batch(model, data.inputs, data.labels, 64)
    torch.nn.functional.cross_entropy(model(data.inputs), data.labels).backward()
    whole = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert gradients.shape == (8, whole.numel())
    assert torch.allclose(gradients.mean(0), whole, atol=1e-5)


def test_two_batch_sizes_give_the_noise_scale_of_made_gradients():
    generator = torch.Generator().manual_seed(0)
    true_gradient = torch.full((50,), 0.2)  # squared norm 2
    samples = true_gradient + 3 * torch.randn(40_000, 50, generator=generator)  # variance 9 * 50
    norms = batch_gradients.squared_norms(samples.reshape(-1, 20, 50).mean(1), 20)
    assert (norms.small_batch, norms.large_batch) == (20, 40_000)
    variance = (norms.small - norms.large) / (1 / norms.small_batch - 1 / norms.large_batch)
    signal = norms.large - variance / norms.large_batch
    assert variance == pytest.approx(450, rel=0.05)
    assert signal == pytest.approx(2, rel=0.05)
    assert variance / signal == pytest.approx(gradient_noise.noise_scale(samples), rel=0.05)


def test_single_rows_as_batches_are_the_gradients_of_single_samples(data):
    model = large_batches.pattern_classifier(0)
    one_by_one = batch_gradients.gradients_by_batch(model, data.inputs[:16], data.labels[:16], 1)
    assert torch.allclose(
        one_by_one, gradient_noise.per_sample_gradients(model, data.inputs[:16], data.labels[:16]), atol=1e-5
    )


@pytest.mark.parametrize("critical", [10, 77, 3000])
def test_the_critical_batch_is_that_of_the_curve_it_was_made_from(critical):
    updates = {2**power: 100 * (1 + critical / 2**power) for power in range(24)}
    assert batch_gradients.critical_batch(updates) == pytest.approx(critical, rel=0.11)


def test_weight_noise_of_a_quadratic_loss_raises_it_by_its_curvature():
    class Square(torch.nn.Module):
        """Cross-entropy of logits (0, w @ x): for small w, its second derivative is that of the sigmoid, 1/4."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((100,), 1e-2))

        def forward(self, x):
            logit = x @ self.weight
            return torch.stack([torch.zeros_like(logit), logit], dim=1)

    def make_noise(weight, share, generator):
        assert torch.all(weight == 1e-2)  # each draw starts from the weights of the model
        return share * torch.randn(weight.shape, generator=generator)

    torch.manual_seed(0)
    inputs = torch.cat([torch.eye(100), torch.eye(100)])
    labels = torch.cat([torch.zeros(100), torch.ones(100)]).long()  # the gradient at zero is zero
    model = Square()
    rise = weight_noise.noisy_loss(model, (inputs, labels), make_noise, 0.1, draws=50) - large_batches.mean_loss(
        model, inputs, labels
    )
    assert rise == pytest.approx(0.1**2 / 8, rel=0.05)
    assert torch.all(model.weight == 1e-2)
    assert weight_noise.noisy_loss(model, (inputs, labels), make_noise, 0.0) == pytest.approx(
        large_batches.mean_loss(model, inputs, labels)
    )


@pytest.mark.full
def test_a_larger_batch_at_the_same_rate_and_epochs_trains_less():
    """The premise of the lesson, in a second: 8 updates instead of 256."""
    data = large_batches.pattern_images(rows=2048, test_rows=1024)
    results = []
    for batch in (32, 1024):
        model = large_batches.pattern_classifier(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for rows in large_batches.shuffled_batches(2048, batch, 4):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(data.inputs[rows]), data.labels[rows]).backward()
            optimizer.step()
        results.append(large_batches.correct_frac(model, data.test_inputs, data.test_labels))
    assert results[0] > results[1] + 0.15
