"""Rates that kernels reach on each GPU, and how far they may lie from them."""

import pytest

from gpulab.hardware.gpus import SPECS
from gpulab.virtual.cost_model.kernel import OpClass
from gpulab.virtual.cost_model.operators import COST_FACTORS
from gpulab.virtual.cost_model.rates import kernel_rates


@pytest.mark.parametrize("each", SPECS, ids=lambda each: each.name)
def test_no_kernel_reaches_more_than_a_peak_but_winograd_s_which_multiply_less(each):
    found = kernel_rates(each)
    for share in (
        found.streaming,
        found.softmax,
        found.layer_norm,
        found.float32_gemm,
        found.half_gemm,
        found.tf32_gemm,
        found.flash_attention,
    ):
        assert 0 <= share <= 1
    assert 0.3 <= found.winograd_conv <= 36 / 16  # what Winograd saves at most with tiles of 4 x 4
    assert found.winograd_conv > found.direct_conv
    assert 1500 <= found.fixed_ns <= 3000


def test_every_class_of_work_has_a_spread_around_its_price():
    assert set(COST_FACTORS) == set(OpClass)
    for best, worst in COST_FACTORS.values():
        assert 0 < best < 1 < worst
