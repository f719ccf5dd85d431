"""Modules of one structure that run one after another are recorded, and their layers are timed as one operator."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gpulab
from gpulab.capture.timing import step_timing
from gpulab.user_objects import PARTS_OF_ONE, SAME_INPUT

STEPS, BATCH, MODULES, WIDTH = 8, 16, 6, 10


@pytest.fixture(autouse=True)
def as_much_time_as_a_busy_machine_needs(monkeypatch):
    for limit in ("_LAYERS_NS", "_MAX_LAYERS_NS"):
        monkeypatch.setattr(step_timing, limit, 10**11)


def recorded(net, *inputs, level="trace", loss=lambda output: output.square().mean()):
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    with gpulab.profile("alike", level=level) as session:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss(net(*inputs)).backward()
            optimizer.step()
    assert not [gap for gap in session.run.recording.left_out if "joined" in gap.what or "something" in gap.what]
    return session.run.separate_modules


class Heads(nn.Module):
    def __init__(self, make=lambda: nn.Linear(WIDTH, 3), modules=MODULES):
        super().__init__()
        self.trunk = nn.Linear(WIDTH, WIDTH)
        self.heads = nn.ModuleList(make() for _ in range(modules))

    def forward(self, x):
        hidden = self.trunk(x)
        return torch.cat([head(hidden) for head in self.heads], 1)


class Tables(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(5 + number, 4, **options) for number in range(MODULES))

    def forward(self, indices):
        columns = [indices[:, number] for number in range(MODULES)] if torch.is_tensor(indices) else indices
        return torch.cat([table(column) for table, column in zip(self.tables, columns, strict=True)], 1)


class Channels(nn.Module):
    """Writes the output for each channel into one tensor."""

    def __init__(self, layer=nn.Linear):
        super().__init__()
        self.layers = nn.ModuleList(layer(WIDTH, 2) for _ in range(MODULES))

    def forward(self, x):
        output = torch.zeros(len(x), MODULES, 2)
        for number, layer in enumerate(self.layers):
            output[:, number] = layer(x[:, number])
        return output


def indices():
    return torch.randint(5, (BATCH, MODULES))


def test_heads_on_the_output_of_a_trunk():
    (group,) = recorded(Heads(), torch.randn(BATCH, WIDTH))
    assert (group.kind, group.modules, group.calls, group.tensors) == ("Linear", MODULES, MODULES, 2 * MODULES)
    assert group.inputs == SAME_INPUT
    assert group.first is not None
    assert group.first.endswith(".heads[0]")
    assert 0 < group.step_frac < 1
    assert group.separate_ns > 0
    assert group.joined_ns > 0


def test_embedding_tables_of_other_sizes_on_columns_of_one_tensor():
    (group,) = recorded(Tables(), indices())
    assert (group.kind, group.modules, group.inputs) == ("Embedding", MODULES, PARTS_OF_ONE)
    assert group.separate_ns > group.joined_ns > 0


def test_tensors_of_their_own_are_no_proof_of_independence():
    assert recorded(Tables(), [column.clone() for column in indices().unbind(1)]) == ()


def test_layers_that_train_on_detached_outputs_of_each_other_are_no_group():
    class Quantizers(Heads):
        """Each one quantizes what the one before has left."""

        def forward(self, x):
            losses, rest = [], x
            for head in self.heads:
                output = head(rest)
                losses.append((output - rest).square().mean())
                rest = (rest - output).detach()
            return torch.stack(losses)

    assert recorded(Quantizers(lambda: nn.Linear(WIDTH, WIDTH)), torch.randn(BATCH, WIDTH)) == ()


def test_a_layer_for_each_channel_whose_outputs_are_written_into_one_tensor():
    (group,) = recorded(Channels(), torch.randn(BATCH, MODULES, WIDTH))
    assert (group.kind, group.modules, group.inputs) == ("Linear", MODULES, PARTS_OF_ONE)


def test_experts_of_several_layers_are_one_group_and_not_their_layers():
    def expert():
        return nn.Sequential(nn.Linear(WIDTH, 20), nn.ReLU(), nn.Linear(20, 3))

    (group,) = recorded(Heads(expert), torch.randn(BATCH, WIDTH))
    assert (group.kind, group.modules, group.tensors) == ("Sequential", MODULES, 4 * MODULES)
    assert group.separate_ns > 0


def test_convolutions_for_each_channel():
    class Images(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Conv2d(1, 2, 3, padding=1) for _ in range(MODULES))

        def forward(self, x):
            return torch.cat([layer(x[:, number : number + 1]) for number, layer in enumerate(self.layers)], 1)

    (group,) = recorded(Images(), torch.randn(4, MODULES, 8, 8))
    assert (group.kind, group.inputs) == ("Conv2d", PARTS_OF_ONE)
    assert group.separate_ns > 0


@pytest.mark.parametrize("frozen", [False, True])
def test_layers_that_follow_each_other_are_no_group(frozen):
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(MODULES)]
    for layer in layers if frozen else []:
        layer.requires_grad_(False)
    assert recorded(nn.Sequential(*layers, nn.Linear(WIDTH, 1)), torch.randn(BATCH, WIDTH)) == ()


def test_a_module_whose_input_holds_the_output_of_the_one_before_is_no_group():
    class Chain(Channels):
        def forward(self, x):
            x = x.clone()
            for number, layer in enumerate(self.layers[:-1]):
                x[:, number + 1, :2] = layer(x[:, number].clone())
            return x

    assert recorded(Chain(), torch.randn(BATCH, MODULES, WIDTH)) == ()


def test_queries_keys_and_values_are_no_group():
    assert recorded(Heads(modules=3), torch.randn(BATCH, WIDTH)) == ()


def test_one_module_that_is_called_several_times_is_no_group():
    head = nn.Linear(WIDTH, 3)
    assert recorded(Heads(lambda: head), torch.randn(BATCH, WIDTH)) == ()


def test_modules_of_different_shapes_are_no_group():
    widths = iter(range(1, MODULES + 1))
    assert recorded(Heads(lambda: nn.Linear(WIDTH, next(widths))), torch.randn(BATCH, WIDTH)) == ()


def test_layers_that_cannot_be_timed_are_recorded_without_times():
    (group,) = recorded(Tables(max_norm=1.0), indices())
    assert (group.separate_ns, group.joined_ns) == (None, None)


def test_without_a_trace_nothing_is_watched():
    assert recorded(Heads(), torch.randn(BATCH, WIDTH), level="sensors") == ()


def trained():
    torch.manual_seed(0)
    net = Heads()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        net(torch.randn(BATCH, WIDTH)).square().mean().backward()
        optimizer.step()
    return [*net.state_dict().values(), torch.rand(3)]


def test_recording_changes_neither_weights_nor_random_numbers():
    expected = trained()
    with gpulab.profile("alike") as session:
        actual = trained()
    assert session.run.separate_modules
    assert all(torch.equal(*pair) for pair in zip(expected, actual, strict=True))


def test_a_saved_run_has_them(tmp_path):
    with gpulab.profile("alike") as session:
        trained()
    gpulab.save(session.run, tmp_path / "run.gpulab")
    assert gpulab.load(tmp_path / "run.gpulab").separate_modules == session.run.separate_modules != ()
