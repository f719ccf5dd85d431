"""The dropout of a loop is timed after the cell, and the program does not notice."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gpulab


def network(**options):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16), nn.Dropout(**{"p": 0.3, **options}), nn.Sequential(nn.ReLU(), nn.Dropout(0.5))
    )


def train(net):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(8):
        optimizer.zero_grad()
        net(torch.ones(64, 8)).sum().backward()
        optimizer.step()


def recorded(net):
    with gpulab.profile("dropout") as session:
        train(net)
    return session.run.dropout_times


def test_dropout_of_a_recorded_loop_is_timed():
    times = recorded(network())
    assert times.calls == 2
    assert times.bernoulli_ns > 0 < times.uniform_ns


@pytest.mark.parametrize("options", [{"inplace": True}, {"p": 0.0}], ids=["in place", "rate 0"])
def test_what_the_fix_does_not_change_is_not_timed(options):
    assert recorded(network(**options)).calls == 1


def test_a_model_without_dropout_has_no_times():
    assert recorded(network(p=0.0)[:2]) is None
    assert recorded(network().eval()) is None


def test_timing_draws_no_random_numbers_of_the_program_and_calls_none_of_its_functions(monkeypatch):
    calls = []
    usual = nn.functional.dropout
    monkeypatch.setattr(nn.functional, "dropout", lambda *args, **more: calls.append(1) or usual(*args, **more))
    train(network())
    number_of_calls, random_state = len(calls), torch.get_rng_state()
    calls.clear()
    assert recorded(network()).calls == 2
    assert len(calls) == number_of_calls
    assert torch.equal(torch.get_rng_state(), random_state)
