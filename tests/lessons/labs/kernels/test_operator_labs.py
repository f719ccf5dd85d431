"""What the course's counters stand on: each operator told once, with what came of it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from gpulab.lessons.labs.host.operators import OperatorCall, count_operators, observe_operators, saved_tensors


def test_each_operator_is_observed_in_order_with_its_result() -> None:
    operator_calls: list[OperatorCall] = []
    with observe_operators(operator_calls.append):
        sum_ = torch.ones(3) + 1
        sum_.relu_()
    torch.ones(3).exp()  # outside
    work = [each for each in operator_calls if each.is_work]
    assert [each.name for each in work] == ["ones", "add", "relu_"]
    assert work[1].schema == "aten::add"
    assert work[1].result is sum_
    assert work[1].args[1] == 1


@pytest.mark.parametrize(
    ("code", "work"),
    [
        (lambda x: x.t(), 0),
        (lambda x: torch.empty(5), 0),
        (lambda x: x.detach(), 0),
        (lambda x: x + 1, 1),
        (lambda x: x.add_(1), 1),
        (lambda x: (x @ x).sum(), 2),
    ],
)  # fmt: skip
def test_views_allocations_and_bookkeeping_are_no_work(code: object, work: int) -> None:
    operator_calls: list[OperatorCall] = []
    x = torch.ones(4, 4)
    with observe_operators(operator_calls.append):
        code(x)  # type: ignore[operator]
    assert sum(each.is_work for each in operator_calls) == work


def test_an_error_within_is_passed_on_and_watching_ends() -> None:
    operator_calls: list[OperatorCall] = []
    x = torch.ones(2)
    with pytest.raises(RuntimeError, match="size"), observe_operators(operator_calls.append):
        x.exp().add(torch.ones(3))
    x.mul(2)
    assert [each.name for each in operator_calls if each.is_work] == ["exp", "ones"]


def test_calls_are_counted_by_name_whatever_their_overload() -> None:
    x = torch.ones(4)
    assert count_operators(lambda: (x + x, x + 1, x * 2)) == {"aten.add": 2, "aten.mul": 1}


def test_each_saved_storage_is_listed_once_without_weights() -> None:
    x = torch.ones(6, 4, requires_grad=True)
    assert [tuple(each.shape) for each in saved_tensors(lambda: (x * x, x.t() * 2, x.exp()))] == [(6, 4), (6, 4)]
    layer = torch.nn.Linear(4, 4)
    assert len(saved_tensors(lambda: layer(x), layer)) == 1
    assert len(saved_tensors(lambda: layer(x))) == 2


def test_on_a_device_without_memory_too() -> None:
    layer = torch.nn.Linear(4, 4, device="meta")
    tensors = saved_tensors(lambda: layer(torch.ones(6, 4, device="meta")).relu(), layer)
    assert sum(each.untyped_storage().nbytes() for each in tensors) == (6 * 4 + 6 * 4) * 4
