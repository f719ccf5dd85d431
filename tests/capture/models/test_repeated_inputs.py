"""Modules that compute the same outputs again in a step are recorded, and programs are left as they are."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import threading
import weakref
from itertools import chain, pairwise

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gpulab
from gpulab.capture.hooks.models.equal_rows import distinct_fraction

STEPS = 8


def layers(*sizes):
    parts = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())]
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


class Counter(nn.Module):
    """Its output depends on how often it was called: all of it, or its last row only."""

    def __init__(self, part):
        super().__init__()
        self.linear, self.part, self.calls = nn.Linear(64, 512), part, 0

    def forward(self, rows):
        self.calls += 1
        outputs = self.linear(rows)
        if self.part == "all":
            return (outputs * self.calls).t()[:, ::2]
        return torch.cat([outputs[:-1], outputs[-1:] * self.calls])


class Mixer(nn.Module):
    """Uses the mean of all rows, so that a copy of a row counts."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 512)

    def forward(self, rows):
        return self.linear(rows + torch.arange(len(rows))[:, None])


NET = layers(64, 512, 8)
NOISY = nn.Sequential(nn.Dropout(0.2), *layers(64, 512, 8))
MIXER, COUNTERS = Mixer(), [Counter("all"), Counter("last")]
NORMED = nn.Sequential(nn.BatchNorm1d(64), *layers(64, 512, 8))
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


def under_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = NET(INPUTS)
    return (first - NET(INPUTS)).square().mean()


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
        lambda: (COUNTERS[0](INPUTS) - COUNTERS[0](INPUTS)).square().mean(),
        lambda: (COUNTERS[1](INPUTS) - COUNTERS[1](INPUTS)).square().mean(),
        lambda: NORMED.train()(INPUTS).square().mean() + NORMED.eval()(INPUTS).square().mean(),
        changed_in_place,
        with_other_weights,
        under_autocast,
        in_another_thread,
    ],
    ids=[
        "new inputs",
        "two masks",
        "masked rows",
        "position",
        "checkpoint",
        "functional",
        "unreadable",
        "last row",
        "mode",
        "in place",
        "weights",
        "autocast",
        "thread",
    ],
)  # fmt: skip
def test_calls_that_give_other_outputs_are_not_repeated(loss):
    assert recorded(loss, chain(*[net.parameters() for net in (NET, NOISY, MIXER, NORMED, *COUNTERS)])) == ()


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


class Doubled(nn.Module):
    def forward(self, inputs):
        return inputs * 2


def test_modules_that_hold_each_other():
    first, second, net, inputs = Doubled(), Doubled(), layers(64, 8), torch.randn(16, 64)
    first.other, second.other = second, first
    assert recorded(lambda: net(first(inputs)).mean(), net.parameters()) == ()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_left_alone():
    net, inputs = nn.Linear(64, 8), torch.nested.nested_tensor([torch.randn(3, 64), torch.randn(5, 64)])
    assert recorded(lambda: torch.nested.to_padded_tensor(net(inputs), 0.0).sum(), net.parameters()) == ()


class Overridden(torch.Tensor):
    """Counts what is asked of it."""

    calls = 0

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        cls.calls += 1
        return super().__torch_function__(function, types, arguments, options or {})

    def dim(self):
        type(self).calls += 1
        return super().dim()


def test_no_method_of_a_tensor_subclass_is_called():
    counts = []
    for is_recorded in (False, True):
        net, inputs = layers(64, 8), torch.randn(64, 64).as_subclass(Overridden)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        Overridden.calls = 0
        with gpulab.profile("subclass", level="sensors") if is_recorded else contextlib.nullcontext():
            for _ in range(STEPS):
                (net(inputs).mean() + net(inputs).mean()).backward()
                optimizer.step()
        counts.append(Overridden.calls)
    assert counts[0] == counts[1]


COMPILES_LATE = """
import sys, torch
from torch._dynamo.utils import counters

def train():
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    others = []
    torch._dynamo.callback.callback_handler.register_start_callback(lambda *_: others.append(1))
    compiled = None
    for step in range(8):
        if step == int(sys.argv[2]):
            compiled = torch.compile(lambda inputs: net(inputs).mean(), backend="eager", fullgraph=True)
        inputs = torch.ones(4, 8)
        (net(inputs).mean() if compiled is None else compiled(inputs)).backward()
        optimizer.step()
    return dict(counters["stats"]), len(others)

if sys.argv[1] == "recorded":
    import gpulab
    with gpulab.profile("late", level="sensors"):
        print(train())
else:
    print(train())
"""


@pytest.mark.full
@pytest.mark.parametrize("step", [pytest.param(2, marks=pytest.mark.night), 4])
def test_a_program_that_compiles_in_a_watched_step_compiles_the_same_and_once(step):
    command = [sys.executable, "-W", "ignore", "-c", COMPILES_LATE]
    outputs = [
        subprocess.run([*command, how, str(step)], capture_output=True, text=True, check=True, timeout=240).stdout
        for how in ("plain", "recorded")
    ]
    assert outputs[0] == outputs[1]
    assert "'unique_graphs': 1" in outputs[0]


def test_no_tensor_lives_longer():
    net, references = layers(64, 512, 8), []

    def loss():
        assert not [reference for reference in references[:-1] if reference() is not None]
        inputs = torch.randn(16, 64)
        references.append(weakref.ref(inputs))
        return net(inputs).square().mean()

    recorded(loss, net.parameters())
    assert len(references) == STEPS


def test_very_many_rows_are_not_compared():
    assert distinct_fraction(torch.ones(60_000, 4), 1) == pytest.approx(1 / 60_000)
    assert distinct_fraction(torch.ones(70_000, 4), 1) is None


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
