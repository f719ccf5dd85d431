"""The planted faults that concern a GPU, on a virtual one: each is found, and its healthy twin is left alone."""

import gc

import pytest

import gpulab
from gpulab.virtual.host.costs import HostCosts
from gpulab.virtual.session import VirtualGpu
from gpulab.workloads import workload
from tests.support.tiers import every_nth
from tests.support.virtual.python_time import constant_python_time

__all__ = ["constant_python_time"]  # a fixture

pytestmark = pytest.mark.usefixtures("constant_python_time")

torch = pytest.importorskip("torch")
nn = torch.nn

FAULTS = (
    "copies_pageable",
    "unoverlapped_copies",
    "results_fetched",
    "noise_on_host",
    "tiny_ops",
    "products_float32",
    "products_tf32",
    "products_odd",
    "channels_first",
    "few_sequences",
    "attention_by_hand",
    "by_hand",
    "emptied_cache",
)
STEPS = 10
# What is left to gain in a twin, by doing something else than mending the fault: it is no fault of gpulab's to say so.
BESIDE = {
    "tiny_ops_batched": "unfused_elementwise"
}  # on a GPU, layer norm and tanh of narrow layers are passes over memory
LOUD_FRAC = 0.1  # of a step: a saving above it is a claim


@pytest.fixture(scope="module")
def played():
    """The diagnosis of a workload on a virtual H100, each played once."""
    known = {}

    def play(name):
        if name not in known:
            with VirtualGpu("h100", name, host=HostCosts.reference()) as gpu:
                workload(name).run(device="cuda", steps=STEPS)
            known[name] = gpulab.diagnose(gpu.run)
            gc.collect()
        return known[name]

    return play


@pytest.mark.parametrize("name", every_nth(FAULTS, 4, pytest.mark.night))
def test_a_fault_of_the_gpu_is_found_on_a_virtual_one(name, played):
    found = played(name)
    assert found.first is not None
    assert found.first.rule == workload(name).rule


@pytest.mark.full
@pytest.mark.parametrize("name", every_nth(sorted({workload(name).twin for name in FAULTS}), 4, pytest.mark.night))
def test_a_healthy_loop_is_left_alone_on_a_virtual_gpu(name, played):
    claims = {
        finding.rule: finding.gain.saved_ns / finding.gain.step_ns
        for finding in played(name).findings
        if finding.gain is not None and not finding.informs_only
    }
    loud = {rule for rule, saved in claims.items() if saved > LOUD_FRAC}
    assert loud <= {BESIDE.get(name)}


def grown_too_large():
    """Batches that double until there is no room for one."""
    model = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(8):
        samples = torch.randn(2**14 * 2**step, 4096, device="cuda")
        optimizer.zero_grad()
        model(samples).square().mean().backward()
        optimizer.step()


def test_a_batch_too_large_for_the_gpu_is_told_before_anything_is_rented():
    gpu = gpulab.virtual_gpu("t4", "too large")
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"GPU 0 has a total capacity of 14\.\d+ GiB"), gpu:
        grown_too_large()
    found = gpulab.diagnose(gpu.run)
    assert found.first is not None
    assert found.first.rule == "out_of_memory"
    assert gpu.run.failure.needed_bytes > gpu.run.failure.free_bytes
    assert gpu.run.failure.allocated_bytes > 2**30
