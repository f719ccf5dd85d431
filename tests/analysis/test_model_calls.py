"""How often a model runs per training step, counted in real loops."""

import pytest

import gpulab
from gpulab.analysis.host.model_calls import model_calls
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

ITEMS = 24


def network():
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))


def counted(loss_of, *models, steps=25):
    """The calls of layers in a loop that trains these models with a loss."""
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.01)
    with gpulab.profile("calls") as session:
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(*models).backward()
            optimizer.step()
            gpulab.step()
    run = session.run
    found_steps = find_steps(run)
    return model_calls(run, found_steps, build_ledger(run, found_steps))


def test_one_call_for_all_items():
    calls = counted(lambda net: net(torch.ones(ITEMS, 6)).sum(), network())
    assert (calls.calls, calls.tensors, calls.least_passes) == (2, 4, 0)


def test_a_call_for_every_item():
    calls = counted(lambda net: sum(net(torch.ones(1, 6)).sum() for _ in range(ITEMS)), network())
    assert (calls.calls, calls.least_passes) == (2 * ITEMS, ITEMS // 2)


def test_a_frozen_model_does_not_count():
    frozen = network().requires_grad_(False)

    def loss(net):
        with torch.no_grad():
            target = torch.stack([frozen(torch.ones(6)) for _ in range(ITEMS)])
        return (net(torch.ones(ITEMS, 6)) - target).square().sum()

    assert counted(loss, network()).calls == 2


def test_a_backbone_that_is_not_frozen_runs_once():
    backbone = nn.Sequential(*(nn.Linear(6, 6) for _ in range(8)))
    calls = counted(lambda head: head(backbone(torch.ones(ITEMS, 6))).sum(), nn.Linear(6, 2))
    assert (calls.calls, calls.least_passes) == (9, 0)


def test_a_recurrent_layer_is_one_call_and_its_cell_in_a_loop_is_not():
    layer, cell = nn.LSTM(6, 8), nn.LSTMCell(6, 8)

    def loop(cell):
        state = None
        for _ in range(ITEMS):
            state = cell(torch.ones(2, 6), state)
        return state[0].sum()

    assert counted(lambda net: net(torch.ones(ITEMS, 2, 6))[0].sum(), layer).calls == 1
    assert counted(loop, cell).calls == ITEMS


def test_higher_derivatives_add_no_calls():
    def loss(net):
        x = torch.ones(ITEMS, 6, requires_grad=True)
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return slope.square().sum()

    assert counted(loss, network()).calls == 2
