"""A parallel operator is timed after a loop that had to wait for cores, and only then."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from gpulab.sensors.parallel_operator import parallel_operator_times
from gpulab.tables import HOST_SAMPLES
from tests.support.runs.made_runs import host_sample, rows


def samples(delayed_frac):
    return rows(HOST_SAMPLES, [host_sample(at, main_delayed_s=at / 1e3 * delayed_frac) for at in (0, 500, 1000)])


@pytest.fixture
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("two_threads")
def test_a_loop_that_waited_for_cores_is_measured():
    times = parallel_operator_times(samples(0.4))
    assert set(times) == {"parallel_add_ns", "serial_add_ns"}
    assert all(int(value) > 0 for value in times.values())


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("rows_of_host", [samples(0.02), samples(0.4).select([0]), samples(float("nan"))])
def test_nothing_is_measured_without_a_wait(rows_of_host):
    assert parallel_operator_times(rows_of_host) == {}


def test_one_thread_is_not_measured(two_threads):
    torch.set_num_threads(1)
    assert parallel_operator_times(samples(0.4)) == {}


@pytest.mark.usefixtures("two_threads")
def test_random_numbers_settings_and_gradients_stay_as_they_are():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with torch.inference_mode():
        parallel_operator_times(samples(0.4))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()


def test_pytorch_is_not_imported_for_it():
    program = """
import sys
from gpulab.sensors.parallel_operator import parallel_operator_times
assert parallel_operator_times(None) == {}
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
