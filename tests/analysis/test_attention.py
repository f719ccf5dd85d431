"""Attention as separate kernels, on a recording of a real GPU whose host runs ahead."""

from __future__ import annotations

import numpy as np
import pytest

from gpulab.analysis.host.instant_device import host_step_time
from gpulab.analysis.kernels.elementwise_chains import chains_on_gpu
from gpulab.analysis.kernels.interior_kernels import interior_kernels
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.files.datasets import dataset
from gpulab.tables import EventKind


@pytest.fixture(scope="module")
def attention():
    """Two layers of attention in bfloat16 on an H100: scores, scaling, softmax and values are kernels of their own."""
    return dataset("h100_07").load()


def test_its_matrix_products_are_those_of_the_batched_operators(attention):
    steps = find_steps(attention)
    kernels = interior_kernels(attention, steps, build_ledger(attention, steps))
    names = attention.event_rows.text("name")
    operator = [names.vocabulary[attention.event_rows["name"][row]] if row >= 0 else "" for row in kernels.op]
    batched = np.array([name == "aten::bmm" for name in operator])  # the projections around it are aten::addmm
    chains = chains_on_gpu(kernels)
    assert chains.count == 4  # a forward and a backward pass of two layers
    assert chains.attention.products_ns == pytest.approx(kernels.cost_ns(batched), rel=0.001)


def test_the_host_needs_the_time_of_its_own_calls_if_it_runs_ahead(attention):
    steps = find_steps(attention)
    launches = attention.event_rows.of_kind(EventKind.LAUNCH)["start_ns"]
    step_count = int(steps.host_steps.recorded.sum())
    needed_ns = host_step_time(attention, steps, build_ledger(attention, steps)).needed_ns
    assert needed_ns == pytest.approx((launches.max() - launches.min()) / step_count, rel=0.1)
    assert needed_ns < 0.7 * steps.traced_ns
