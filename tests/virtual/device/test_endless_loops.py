"""Loops that wait for an assumed value are stopped with their line; loops that end are not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gpulab.errors import CaptureError  # noqa: E402
from gpulab.virtual.device.endless_loops import guard  # noqa: E402
from tests.support.virtual.cuda_programs import device  # noqa: E402


@pytest.fixture(autouse=True)
def few_passes(monkeypatch):
    monkeypatch.setattr(guard, "FREE_READS", 8)
    monkeypatch.setattr(guard, "MAX_EQUAL_PASSES", 20)
    monkeypatch.setattr(guard, "MAX_TENSOR_PASSES", 60)
    monkeypatch.setattr(guard, "MAX_PASSES", 150)


def numbers():
    return torch.randn(4, device="cuda")


def in_the_condition():
    values = numbers()
    while not (values > 5).any().item():  # stops here
        values = values * 2


def through_a_variable():
    values, done = numbers(), False
    while not done:  # stops here
        values = values + 1
        done = bool((values > 5).all())


def with_a_break():
    tokens = torch.randint(0, 9, (1, 2), device="cuda")
    while True:  # stops here
        tokens = torch.cat([tokens, tokens[:, -1:]], dim=1)
        if tokens[0, -1].item() == 2:
            break


def _is_done(values):
    return bool((values > 5).any())


def in_a_function():
    values = numbers()
    while not _is_done(values):  # stops here
        values = values * 2


def as_a_host_copy():
    values = numbers()
    while (values > 5).cpu().numpy().sum() < 1:  # stops here
        values = values * 2


def in_a_counted_loop():
    for _ in range(3):
        values = numbers()
        while (values > 5).sum().item() < 3 or values.isnan().any():  # stops here
            values = values * 2


ENDLESS = [in_the_condition, through_a_variable, with_a_break, in_a_function, as_a_host_copy, in_a_counted_loop]


@pytest.mark.parametrize("program", ENDLESS, ids=lambda program: program.__name__)
def test_a_loop_that_waits_for_an_assumed_value_is_stopped_with_its_line(program):
    import inspect

    lines, first = inspect.getsourcelines(program)
    line = next(first + index for index, text in enumerate(lines) if "# stops here" in text)
    with device(), pytest.raises(CaptureError) as stopped:
        program()
    assert f"line {line} of {__file__}" in stopped.value.why
    assert "bound the loop" in stopped.value.fix


def losses():
    for _ in range(400):
        numbers().sum().item()


def counted():
    count = 0
    while count < 400:
        count += 1
        numbers().sum().item()


def bounded():
    values, count = numbers(), 0
    while count < 100 and not (values > 5).any():
        values, count = values * 2, count + 1


def known_in_the_end():
    count = torch.zeros((), dtype=torch.long, device="cuda")
    while count < 300:
        count += 1


def early_stopping():
    weight = torch.nn.Parameter(numbers())
    optimizer = torch.optim.SGD([weight], lr=0.1)
    best = 0
    while True:
        best += 1
        loss = weight.square().sum()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.5 or best > 200:
            break


def entered_again():
    for _ in range(20):
        values, count = numbers(), 0
        while count < 30:
            count += 1
            if (values > 5).any().item():
                break


def nested():
    for _ in range(6):
        for values in [numbers() for _ in range(30)]:
            count = 0
            while not (values > 5).any() and count < 10:
                count += 1


ENDS = [losses, counted, bounded, known_in_the_end, early_stopping, entered_again, nested]


@pytest.mark.parametrize("program", ENDS, ids=lambda program: program.__name__)
def test_a_loop_that_ends_is_not_stopped(program):
    with device():
        program()


def test_the_analysis_of_a_loop_keeps_no_tensor_alive():
    def program():
        values = torch.randn(2**20, device="cuda")
        count = 0
        while count < 50 and not (values[0] > 5).item():
            count += 1
        del values
        return torch.cuda.memory_allocated()

    with device():
        assert program() == 0


def test_a_dictionary_that_the_program_got_from_locals_keeps_its_entries():
    def program():
        values, count = numbers(), 0
        variables = locals()
        while count < 40:
            if (values > 5).any().item():
                break
            count += 1
        return variables

    with device():
        variables = program()
    assert {"values", "count"} <= set(variables)
