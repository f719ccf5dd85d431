"""Modules that compute the same outputs again in a step are recorded, and programs are left as they are."""

from __future__ import annotations

import functools
import itertools
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gpulab
from gpulab.capture.hooks.models.equal_rows import distinct_fraction

STEPS = 8


def layers(*sizes):
    parts = [part for pair in itertools.pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*parts[:-1])


def recorded(loss, parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    with gpulab.profile("again", level="sensors") as session:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    assert not [gap for gap in session.run.recording.left_out if "something again" in gap.what]
    return session.run.repeated_inputs


class Decoder(nn.Module):
    """Attends to the same features in each of twelve time steps."""

    def __init__(self, first=None):
        super().__init__()
        self.first = first  # uses a view of so many features, which is another object in each time step
        self.key, self.cell = nn.Linear(64, 256), nn.GRUCell(64, 256)

    def forward(self, features):
        state = features.new_zeros(len(features), 256)
        for _ in range(12):
            part = features if self.first is None else features[:, : self.first]
            scores = (self.key(part) * state[:, None]).sum(-1).softmax(-1)
            state = self.cell((scores[..., None] * part).sum(1), state)
        return state


@pytest.mark.parametrize("first", [None, 40])
def test_a_projection_of_the_same_features_in_each_time_step(first):
    decoder, features = Decoder(first), torch.randn(64, 50, 64)
    (work,) = recorded(lambda: decoder(features).square().mean(), decoder.parameters())
    assert (work.kind, work.name, work.calls, work.distinct_frac) == ("Linear", "decoder.key", 11, None)
    assert work.with_gradient
    assert 0 < work.step_frac < 1
    assert work.location.startswith("forward (")


def test_a_second_pass_for_a_metric():
    net, inputs = layers(64, 512, 8), torch.randn(512, 64)

    def loss():
        value = net(inputs).square().mean()
        with torch.no_grad():
            net(inputs).argmax(1)
        return value

    (work,) = recorded(loss, net.parameters())
    assert (work.name, work.calls, work.with_gradient) == ("net", 1, False)


@pytest.mark.parametrize("repeated", [
    lambda rows: rows.repeat_interleave(50, dim=0),
    lambda rows: rows.repeat(50, 1),
    lambda rows: rows[:, None].expand(-1, 50, -1).contiguous(),
])  # fmt: skip
def test_rows_that_are_repeated_before_an_encoder(repeated):
    encoder, rows = layers(64, 512, 32), torch.randn(10, 64)
    (work,) = recorded(lambda: encoder(repeated(rows)).square().mean(), encoder.parameters())
    assert (work.name, work.calls) == ("encoder", 1)
    assert work.distinct_frac == pytest.approx(1 / 50)


class Mixer(nn.Module):
    """Uses the mean of all rows, so that a copy of a row counts."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 512)

    def forward(self, rows):
        return self.linear(rows + torch.arange(len(rows))[:, None])


NET = layers(64, 512, 8)
NOISY = nn.Sequential(nn.Dropout(0.2), *layers(64, 512, 8))
MIXER = Mixer()
INPUTS = torch.randn(500, 64)


def changed_in_place():
    inputs = INPUTS.clone()
    with torch.no_grad():
        first = NET(inputs)
    return (first - NET(inputs.mul_(2))).square().mean()


def with_other_weights():
    first = NET(INPUTS)
    with torch.no_grad():
        for parameter in NET.parameters():
            parameter.mul_(0.9)
    return (first.detach() - NET(INPUTS)).square().mean()


def in_another_thread():
    thread = threading.Thread(target=NET, args=(INPUTS,))
    thread.start()
    thread.join()
    return NET(INPUTS).square().mean()


@pytest.mark.parametrize(
    "loss",
    [
        lambda: NET(torch.randn(500, 64)).square().mean() + NET(torch.randn(500, 64)).mean(),
        lambda: (NOISY(INPUTS) - NOISY(INPUTS)).square().mean(),
        lambda: NOISY(INPUTS[:10].repeat(50, 1)).square().mean(),
        lambda: MIXER(INPUTS[:10].repeat(50, 1)).square().mean(),
        lambda: checkpoint(NET, INPUTS, use_reentrant=False).square().mean(),
        lambda: torch.func.functional_call(NET, {n: p * 2 for n, p in NET.named_parameters()}, INPUTS).mean()
        + NET(INPUTS).mean(),
        changed_in_place,
        with_other_weights,
        in_another_thread,
    ],
    ids=["new inputs", "two masks", "masked rows", "position", "checkpoint", "functional", "in place",
         "weights", "thread"],
)  # fmt: skip
def test_calls_that_give_other_outputs_are_not_repeated(loss):
    assert recorded(loss, [*NET.parameters(), *NOISY.parameters(), *MIXER.parameters()]) == ()


def test_a_closure_that_trains_between_its_calls_repeats_nothing():
    net, inputs = layers(64, 512, 8), torch.randn(500, 64)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = net(inputs).square().mean()
        loss.backward()
        return loss

    with gpulab.profile("closure", level="sensors") as session:
        for _ in range(STEPS):
            optimizer.step(closure)
    assert session.run.repeated_inputs == ()


def test_modules_are_called_as_before_when_the_recording_ends():
    original = nn.Module.__call__
    net, optimizer = layers(4, 4), None
    for updates in range(6):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        with gpulab.profile("ends", level="sensors"):
            for _ in range(updates):
                net(torch.randn(2, 4)).sum().backward()
                optimizer.step()
        assert nn.Module.__call__ is original


def test_a_patch_over_ours_stays_and_still_calls_the_module():
    original, net = nn.Module.__call__, layers(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    try:
        with gpulab.profile("patched", level="sensors"):
            for step in range(STEPS):
                if step == 2:
                    ours = nn.Module.__call__
                    nn.Module.__call__ = functools.partialmethod(
                        lambda *arguments, inner: inner(*arguments), inner=ours
                    )
                net(torch.randn(2, 4)).sum().backward()
                optimizer.step()
        assert ours is not original
        assert net(torch.randn(2, 4)).shape == (2, 4)
    finally:
        nn.Module.__call__ = original


def test_an_error_in_a_model_reaches_the_program_and_nothing_is_claimed():
    net, inputs = layers(64, 512, 8), torch.randn(500, 64)
    errors = []

    def loss():
        net(inputs)
        try:
            net(torch.randn(2, 3))
        except RuntimeError as error:
            errors.append(error)
        return net(inputs).square().mean()

    assert recorded(loss, net.parameters()) == ()
    assert len(errors) == STEPS


def test_no_tensor_lives_longer():
    net, references = layers(64, 512, 8), []

    def loss():
        assert not [reference for reference in references[:-1] if reference() is not None]
        inputs = torch.randn(16, 64)
        references.append(weakref.ref(inputs))
        return net(inputs).square().mean()

    recorded(loss, net.parameters())
    assert len(references) == STEPS


def test_distinct_rows_are_counted_as_numpy_counts_them():
    generator = torch.Generator().manual_seed(0)
    for rows, width, values in ((20, 4, 2), (300, 33, 3), (1000, 5, 7)):
        tensor = torch.randint(1, 1 + values, (rows, width), generator=generator).float()
        tensor[rows // 2 :] = tensor[: rows - rows // 2]
        assert distinct_fraction(tensor, 1) == pytest.approx(len(tensor.unique(dim=0)) / rows)


def test_it_survives_saving(tmp_path):
    net, inputs = layers(64, 512, 8), torch.randn(500, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with gpulab.profile("saved", level="sensors") as session:
        for _ in range(STEPS):
            (net(inputs) + net(inputs)).square().mean().backward()
            optimizer.step()
    gpulab.save(session.run, tmp_path / "run.gpulab")
    assert gpulab.load(tmp_path / "run.gpulab").repeated_inputs == session.run.repeated_inputs != ()
