"""Rates that kernels reach on each GPU, and how far they may lie from them."""

import pytest

from gpulab.hardware.gpus import SPECS
from gpulab.virtual.cost_model.kernel import OpClass
from gpulab.virtual.cost_model.operators import SPREAD
from gpulab.virtual.cost_model.rates import rates


@pytest.mark.parametrize("each", SPECS, ids=lambda each: each.name)
def test_no_kernel_reaches_more_than_a_peak_but_winograd_s_which_multiply_less(each):
    found = rates(each)
    for share in (found.stream, found.softmax, found.norm, found.plain, found.half, found.tf32, found.attention):
        assert 0 <= share <= 1
    assert 0.3 <= found.winograd <= 36 / 16  # what Winograd saves at most with tiles of 4 x 4
    assert found.winograd > found.direct
    assert 1500 <= found.fixed_ns <= 3000


def test_every_class_of_work_has_a_spread_around_its_price():
    assert set(SPREAD) == set(OpClass)
    for best, worst in SPREAD.values():
        assert 0 < best < 1 < worst
