"""Threads of NumPy's BLAS that spin beside those of PyTorch are told from these, and from threads of Python."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.cases.host.cpu_oversubscription.case import provoked_by_a_thread_of_blas_that_spins
from tests.support.runs.cases import diagnosis_of

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


def facts(work, attempts=1, before="", **environment):
    """What a program says of its BLAS threads after some steps of operators on two threads, and this work."""
    command = [sys.executable, "-c", before + PROGRAM, work, str(attempts)]
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


def test_the_printed_fix_leaves_no_thread_that_spins():
    pytest.importorskip("threadpoolctl")
    fix = diagnosis_of(provoked_by_a_thread_of_blas_that_spins).first.fix
    assert facts("products", before=fix) == {}  # NumPy was not imported before


RECORDED = """
import time
import numpy as np, torch
import gpulab

torch.set_num_threads(2)
matrix, model = np.ones((256, 256), np.float32), torch.nn.Linear(1000, 1000)
optimizer = torch.optim.SGD(model.parameters())
for attempt in range(5):
    with gpulab.profile(f"run {attempt}"):
        end = time.perf_counter() + 2
        while time.perf_counter() < end:
            matrix @ matrix
            model(torch.ones(100, 1000)).sum().backward()
            optimizer.step()
    if "blas_cores" in gpulab.runs.last.facts:
        break
else:
    raise SystemExit("no threads of BLAS in five recordings")
"""


@pytest.mark.full
@pytest.mark.skipif(not spins_by_itself(), reason="NumPy is not built with OpenBLAS, or this is not Linux")
def test_a_recording_of_a_loop_with_products_tells_of_these_threads():
    variables = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", RECORDED], env=variables, capture_output=True, timeout=240, check=True)
