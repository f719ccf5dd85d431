"""Gradients that one optimizer's backward passes add to another's parameters, and that are deleted before it steps."""

from __future__ import annotations

import copy
import io
import threading
import weakref
from itertools import pairwise

import pytest
import torch
from torch import nn

import gpulab
from gpulab.capture.hooks.models import gradient_watch

ITERATIONS = 10
DIGITS = torch.linspace(-1, 1, 64 * 784).reshape(64, 784)


def layers(*sizes):
    parts = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.LeakyReLU(0.2))]
    return nn.Sequential(*parts[:-1])


class Gan:
    """A generator, a discriminator, and an iteration that trains both."""

    def __init__(self):
        torch.manual_seed(0)
        self.generator, self.discriminator = layers(100, 512, 1024, 784), layers(784, 256, 1)
        self.of_generator = torch.optim.Adam(self.generator.parameters(), lr=1e-4)
        self.of_discriminator = torch.optim.Adam(self.discriminator.parameters(), lr=1e-4)

    def discriminator_loss(self, images):
        return self.discriminator(images).mean() - self.discriminator(DIGITS).mean()

    def generator_loss(self, images):
        return -self.discriminator(images).mean()

    def fakes(self):
        return self.generator(torch.randn(64, 100))


def with_graph(gan):
    gan.of_discriminator.zero_grad()
    gan.discriminator_loss(gan.fakes()).backward()
    gan.of_discriminator.step()
    gan.of_generator.zero_grad()
    gan.generator_loss(gan.fakes()).backward()
    gan.of_generator.step()


def with_graph_of_one_loss(gan):
    gan.of_discriminator.zero_grad()
    gan.discriminator_loss(gan.fakes()).backward()
    gan.of_discriminator.step()
    gan.of_generator.zero_grad()
    gan.discriminator.requires_grad_(False)
    gan.generator_loss(gan.fakes()).backward()
    gan.discriminator.requires_grad_(True)
    gan.of_generator.step()


def with_retained_graph(gan):
    images = gan.fakes()
    gan.of_discriminator.zero_grad()
    gan.discriminator_loss(images).backward(retain_graph=True)
    gan.of_discriminator.step()
    gan.of_generator.zero_grad()
    gan.generator_loss(images).backward()
    gan.of_generator.step()


def with_several_critic_steps(gan):
    for _ in range(3):
        gan.of_discriminator.zero_grad()
        gan.discriminator_loss(gan.fakes()).backward()
        gan.of_discriminator.step()
    gan.of_generator.zero_grad()
    gan.generator_loss(gan.fakes()).backward()
    gan.of_generator.step()


def detached(gan):
    gan.of_discriminator.zero_grad()
    gan.discriminator_loss(gan.fakes().detach()).backward()
    gan.of_discriminator.step()
    gan.of_generator.zero_grad()
    gan.generator_loss(gan.fakes()).backward()
    gan.of_generator.step()


def with_frozen_discriminator(gan):
    gan.of_discriminator.zero_grad()
    gan.discriminator_loss(gan.fakes().detach()).backward()
    gan.of_discriminator.step()
    gan.of_generator.zero_grad()
    gan.discriminator.requires_grad_(False)
    gan.generator_loss(gan.fakes()).backward()
    gan.discriminator.requires_grad_(True)
    gan.of_generator.step()


def with_one_loss(gan):
    gan.of_discriminator.zero_grad()
    gan.of_generator.zero_grad()
    gan.discriminator_loss(gan.fakes()).backward()
    gan.of_discriminator.step()
    gan.of_generator.step()


def with_summed_gradients(gan):
    gan.of_discriminator.zero_grad()
    gan.of_generator.zero_grad()
    gan.discriminator_loss(gan.fakes()).backward()
    gan.of_discriminator.step()
    gan.generator_loss(gan.fakes()).backward()
    gan.of_generator.step()


def of_one_kind(found, *, passed_through=False):
    return tuple(gradients for gradients in found if gradients.passed_through is passed_through)


def recorded(iteration, iterations=ITERATIONS):
    gan = Gan()
    generator, optimizer = gan.generator, gan.of_discriminator  # variables that gpulab finds
    discriminator, other_optimizer = gan.discriminator, gan.of_generator
    with gpulab.profile("gan", level="sensors") as session:
        for _ in range(iterations):
            iteration(gan)
    del generator, optimizer, discriminator, other_optimizer
    assert not [gap for gap in session.run.recording.left_out if "gradients" in gap.what]
    return session.run.discarded_gradients


@pytest.mark.parametrize(("iteration", "passes"), [
    (with_graph, 1), (with_retained_graph, 1), (with_several_critic_steps, 3),
])  # fmt: skip
def test_a_discriminator_whose_loss_runs_backward_through_the_generator(iteration, passes):
    (gradients,) = of_one_kind(recorded(iteration))
    assert (gradients.model, gradients.optimizer) == ("generator", "optimizer")
    assert gradients.owner == "other_optimizer"
    assert gradients.passes == passes
    assert 0 < gradients.step_frac < 1
    assert iteration.__name__ in gradients.location


@pytest.mark.parametrize("iteration", [detached, with_one_loss, with_summed_gradients, with_frozen_discriminator])
def test_gradients_that_are_used_or_do_not_exist(iteration):
    assert of_one_kind(recorded(iteration)) == ()


@pytest.mark.parametrize("iteration", [detached, with_graph, with_several_critic_steps])
def test_a_generator_whose_loss_computes_gradients_of_the_discriminators_weights(iteration):
    (gradients,) = of_one_kind(recorded(iteration), passed_through=True)
    assert (gradients.model, gradients.owner, gradients.optimizer) == ("discriminator", "optimizer", "other_optimizer")
    assert gradients.passes == 1
    assert 0 < gradients.step_frac < 1
    assert iteration.__name__ in gradients.location


@pytest.mark.parametrize("iteration", [with_frozen_discriminator, with_one_loss])
def test_a_discriminator_without_gradients_of_a_generators_loss(iteration):
    assert of_one_kind(recorded(iteration), passed_through=True) == ()


def test_too_few_iterations_to_know():
    assert recorded(with_graph, 3) == ()


def test_a_program_keeps_its_values_and_its_hooks():
    def trained(iteration):
        gan, noted = Gan(), []
        weight = gan.generator[0].weight
        handle = weight.register_post_accumulate_grad_hook(lambda parameter: noted.append(parameter.grad.sum().item()))
        for _ in range(ITERATIONS):
            iteration(gan)
        handle.remove()
        assert not weight._post_accumulate_grad_hooks
        return noted, [parameter.detach().clone() for parameter in gan.generator.parameters()]

    noted, weights = trained(with_graph)
    with gpulab.profile("gan", level="sensors"):
        noted_again, weights_again = trained(with_graph)
    assert noted_again == noted
    assert all(torch.equal(*pair) for pair in zip(weights_again, weights, strict=True))


def test_models_can_be_copied_and_saved_while_they_are_watched():
    def iteration(gan):
        with_graph(gan)
        copy.deepcopy(gan.generator)
        torch.save(gan.generator, io.BytesIO())

    assert len(of_one_kind(recorded(iteration))) == 1


def test_hooks_are_removed_if_the_program_ends_in_a_measured_iteration():
    gan = Gan()
    with gpulab.profile("gan", level="sensors"):
        for _ in range(3):
            with_graph_of_one_loss(gan)
        with_graph(gan)
        gan.of_discriminator.zero_grad()
    assert not any(parameter._post_accumulate_grad_hooks for parameter in gan.generator.parameters())


def test_a_gradient_lives_no_longer():
    gan, references = Gan(), []

    def iteration(gan):
        with_graph(gan)
        references.append(weakref.ref(gan.generator[0].weight.grad))

    with gpulab.profile("gan", level="sensors"):
        for _ in range(ITERATIONS):
            iteration(gan)
        alive = [reference() is not None for reference in references]
    assert alive == [False] * (ITERATIONS - 1) + [True]


def test_the_result_is_saved_with_the_run(tmp_path):
    gan = Gan()
    with gpulab.profile("gan", level="sensors") as session:
        for _ in range(ITERATIONS):
            with_graph(gan)
    gpulab.save(session.run, tmp_path / "run.gpulab")
    assert gpulab.load(tmp_path / "run.gpulab").discarded_gradients == session.run.discarded_gradients != ()


def hooks_of(gan):
    return [parameter for parameter in gan.generator.parameters() if parameter._post_accumulate_grad_hooks]


@pytest.mark.parametrize(("limit", "value", "iteration", "loss_of"), [
    ("_MOST_ARRIVALS", 50, with_graph_of_one_loss, lambda gan: gan.discriminator_loss(gan.fakes())),
    ("_MOST_STEPS", 10, detached, lambda gan: gan.discriminator_loss(gan.fakes().detach())),
])  # fmt: skip
def test_an_iteration_that_does_not_end_is_given_up(limit, value, iteration, loss_of, monkeypatch):
    monkeypatch.setattr(gradient_watch, limit, value)
    gan = Gan()
    with gpulab.profile("gan", level="sensors") as session:
        for _ in range(3):
            iteration(gan)
        assert hooks_of(gan)
        for _ in range(20):  # the generator is trained no more
            gan.of_discriminator.zero_grad()
            loss_of(gan).backward()
            gan.of_discriminator.step()
        assert not hooks_of(gan)
    assert session.run.discarded_gradients == ()


@pytest.mark.parametrize("of_optimizer", [lambda parameter: parameter.requires_grad, lambda parameter: True])
def test_a_model_with_frozen_parameters_is_not_named(of_optimizer):
    """requires_grad_(True) on the whole model would train them, too."""

    gan = Gan()
    discriminator = gan.discriminator
    discriminator[0].bias.requires_grad_(False)
    parameters = filter(of_optimizer, discriminator.parameters())
    optimizer = gan.of_discriminator = torch.optim.Adam(parameters, lr=1e-4)
    with gpulab.profile("gan", level="sensors") as session:
        for _ in range(ITERATIONS):
            detached(gan)
    del optimizer, discriminator
    (gradients,) = of_one_kind(session.run.discarded_gradients, passed_through=True)
    assert (gradients.model, gradients.owner) == (None, "optimizer")


def test_with_many_optimizers_nothing_is_watched():
    gan = Gan()
    with gpulab.profile("gan", level="sensors") as session:
        for _ in range(3):
            with_graph_of_one_loss(gan)
        assert hooks_of(gan)
        for _ in range(4):
            torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1).step()
        with_graph(gan)
        assert not hooks_of(gan)
    assert session.run.discarded_gradients == ()


def test_a_backward_pass_in_another_thread_as_on_a_gpu():
    def iteration(gan):
        gan.of_discriminator.zero_grad()
        loss = gan.discriminator_loss(gan.fakes())
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        gan.of_discriminator.step()
        gan.of_generator.zero_grad()
        gan.generator_loss(gan.fakes()).backward()
        gan.of_generator.step()

    (gradients,) = of_one_kind(recorded(iteration))
    assert gradients.passes == 1
