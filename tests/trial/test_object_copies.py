"""Copies of the user's objects: they work together as the originals do, and nothing reaches the originals."""

from __future__ import annotations

import sys
import weakref
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import __main__
from gpulab.errors import CaptureError
from gpulab.trial.object_copies import ObjectCopies


def copies_of(**objects):
    return ObjectCopies(objects, objects).restore()


def trained(model, optimizer):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_a_copied_optimizer_updates_the_copied_model_only(kind):
    model = torch.nn.Linear(4, 3)
    optimizer = kind(model.parameters(), lr=0.1)
    trained(model, optimizer)
    before, state = model.weight.clone(), str(optimizer.state_dict())
    copies = copies_of(model=model, optimizer=optimizer)
    assert torch.equal(copies["model"].weight, before)
    trained(copies["model"], copies["optimizer"])
    assert not torch.equal(copies["model"].weight, before)
    assert torch.equal(model.weight, before)
    assert str(optimizer.state_dict()) == state


@pytest.mark.filterwarnings("ignore:Seems like")  # the copied optimizer has no counter of steps
def test_a_copied_schedule_changes_the_rate_of_the_copied_optimizer():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    copies = copies_of(schedule=schedule, optimizer=optimizer)
    copies["optimizer"].step()
    copies["schedule"].step()
    assert copies["optimizer"].param_groups[0]["lr"] == pytest.approx(0.1)
    assert optimizer.param_groups[0]["lr"] == 1.0


def test_tied_weights_and_shared_memory_stay_shared():
    encoder, decoder = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    decoder.weight = encoder.weight
    rows = torch.arange(12.0).reshape(3, 4)
    copies = copies_of(encoder=encoder, decoder=decoder, rows=rows, first=rows[0])
    assert copies["decoder"].weight is copies["encoder"].weight
    copies["rows"][0, 0] = -1
    assert copies["first"][0] == -1
    assert rows[0, 0] == 0


def test_each_restore_starts_from_the_users_objects():
    counts = ObjectCopies(["losses", "array"], {"losses": [1.0], "array": np.zeros(2)})
    first, second = counts.restore(), counts.restore()
    first["losses"].append(2.0)
    first["array"][0] = 5
    assert second["losses"] == [1.0]
    assert second["array"][0] == 0


def test_a_closure_reaches_the_copies():
    model = torch.nn.Linear(1, 1)

    def make_step(counter):
        def step():
            counter.append(1)
            return model

        return step

    counter = []
    copies = copies_of(step=make_step(counter), model=model)
    assert copies["step"]() is copies["model"]
    assert counter == []


def test_a_recursive_closure_is_copied():
    def factory():
        def countdown(number):
            return 0 if number == 0 else countdown(number - 1)

        return countdown

    copied = copies_of(countdown=factory())["countdown"]
    assert copied(5) == 0
    assert copied.__name__ == "countdown"


def test_names_that_functions_use_are_copied_with_them(monkeypatch):
    monkeypatch.setattr(__main__, "history", [], raising=False)
    exec("def log(value):\n    history.append(value)", vars(__main__))
    try:
        copies = ObjectCopies(["log"], vars(__main__)).restore()
        assert set(copies) == {"log", "history"}
        assert copies["history"] is not __main__.history
        assert copies["log"] is __main__.log  # it sees the copies while they replace the variables
    finally:
        del __main__.log


def test_a_loader_is_copied_without_the_workers_of_its_last_epoch():
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2, num_workers=1, persistent_workers=True)
    list(loader)
    assert loader._iterator is not None
    copied = copies_of(loader=loader)["loader"]
    assert copied._iterator is None
    assert [batch.tolist() for (batch,) in copied] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_random_generators_continue_alike_and_apart():
    generator, numbers = torch.Generator().manual_seed(3), np.random.default_rng(3)
    copies = copies_of(generator=generator, numbers=numbers)
    drawn = torch.rand(2, generator=copies["generator"]), copies["numbers"].random()
    assert torch.equal(drawn[0], torch.rand(2, generator=generator))
    assert drawn[1] == numbers.random()


def test_a_loss_with_its_graph_is_copied_without_it():
    loss = torch.nn.Linear(1, 1)(torch.ones(1)).sum()
    copied = copies_of(loss=loss)["loss"]
    assert copied.item() == loss.item()
    assert copied.grad_fn is None


@pytest.mark.parametrize(
    "value",
    [
        (number for number in range(3)),
        iter(DataLoader(TensorDataset(torch.ones(2)))),
        sys.stdout,
        weakref.ref(torch.nn.Linear(1, 1)),
    ],
    ids=["generator", "iterator of a DataLoader", "open file", "weak reference"],
)
def test_what_cannot_be_copied_is_refused_by_name(value):
    with pytest.raises(CaptureError, match="`source`"):
        ObjectCopies(["source"], {"source": [value]})


def test_an_iterator_over_a_list_is_copied():
    numbers = iter([1, 2, 3])
    assert next(copies_of(numbers=numbers)["numbers"]) == 1
    assert next(numbers) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, while it imports its compiler
def test_a_compiled_model_is_copied_and_compiled_again():
    model = torch.compile(torch.nn.Linear(2, 1), backend="eager")
    inputs = torch.ones(1, 2)
    model(inputs)
    copied = copies_of(model=model)["model"]
    with torch.no_grad():
        copied.weight.zero_()
        copied.bias.zero_()
    assert copied(inputs).item() == 0
    assert model(inputs).item() != 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_function_is_refused():
    with pytest.raises(CaptureError, match="compile"):
        copies_of(step=torch.compile(lambda inputs: inputs + 1, backend="eager"))


def test_objects_larger_than_the_free_memory_are_refused(monkeypatch):
    weights = torch.zeros(1000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=11_000))
    copies_of(weights=[weights, weights, weights[:10]])  # the same memory counts once
    with pytest.raises(CaptureError, match="too large"):
        copies_of(weights=weights, more=torch.zeros(1000))
