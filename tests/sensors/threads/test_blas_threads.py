"""Threads of NumPy's BLAS that spin beside those of PyTorch are told from these, and from threads of Python."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")

PROGRAM = """
import json, sys, threading, time
import numpy as np, torch
from gpulab.sensors.host.blas_threads import BlasThreads

torch.set_num_threads(2)
matrix, tensor = np.ones((256, 256), np.float32), torch.ones(1000, 1000)
found = {}
for attempt in range(int(sys.argv[2])):  # beside many other programs, the thread may not get the time to spin
    watch = BlasThreads()
    end = time.perf_counter() + 1.5
    while time.perf_counter() < end:
        watch.boundary()
        tensor.mul_(1.0)
        if sys.argv[1] == "products":
            matrix @ matrix
    found = found or watch.facts()
print(json.dumps(found))
"""


def facts(work, attempts=1, **environment):
    """What a program says of its BLAS threads after some steps of operators on two threads, and this work."""
    command = [sys.executable, "-c", PROGRAM, work, str(attempts)]
    variables = {**os.environ, "OPENBLAS_NUM_THREADS": "2", **environment}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(done.stdout)


def spins_by_itself():
    """Whether NumPy computes with OpenBLAS on a system that tells the CPU time of each thread."""
    return sys.platform == "linux" and "openblas" in np.__config__.CONFIG["Build Dependencies"]["blas"]["name"]


@pytest.mark.skipif(not spins_by_itself(), reason="NumPy is not built with OpenBLAS, or this is not Linux")
def test_a_thread_that_spins_after_products_is_one_of_blas():
    measured = facts("products", attempts=5)
    assert measured["blas_threads"] == "1"
    assert 10_000_000 <= int(measured["blas_spin_ns"]) <= 250_000_000
    assert 0 < float(measured["blas_cores"]) <= 1.05


def test_threads_of_pytorch_are_not_those_of_blas():
    assert facts("operators") == {}


def test_one_thread_of_blas_is_the_main_thread():
    assert facts("products", OPENBLAS_NUM_THREADS="1") == {}
