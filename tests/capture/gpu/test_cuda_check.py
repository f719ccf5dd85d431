"""gpulab's own question for a GPU does not initialise CUDA, which would break the program's forked workers."""

import os

import pytest

from gpulab.capture.protection import cuda_check
from gpulab.capture.protection.cuda_check import VARIABLE, is_cuda_available

torch = pytest.importorskip("torch")


@pytest.fixture
def machine(monkeypatch):
    """A machine with a CUDA build of PyTorch: what NVML and the runtime answer, and the calls of the runtime."""
    answers = {"nvml": 1, "runtime": 1, "calls": 0}

    def runtime():
        answers["calls"] += 1
        return answers["runtime"]

    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda: answers["nvml"])
    monkeypatch.setattr(torch.cuda, "_cached_device_count", None)
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", runtime, raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)
    return answers


@pytest.mark.parametrize("count", [0, 1, 8])
def test_nvml_answers_and_the_cuda_runtime_is_not_called(machine, count):
    machine["nvml"] = count
    assert is_cuda_available() == (count > 0)
    assert machine["calls"] == 0
    assert VARIABLE not in os.environ


def test_the_runtime_answers_where_nvml_does_not(machine):
    machine["nvml"] = -1
    assert is_cuda_available()
    assert machine["calls"] == 1


@pytest.mark.parametrize("value", ["0", "1", ""])
def test_the_users_own_choice_stays(machine, monkeypatch, value):
    monkeypatch.setenv(VARIABLE, value)
    assert is_cuda_available()
    assert machine["calls"] == 0
    assert os.environ[VARIABLE] == value


def test_the_variable_is_restored_after_an_error(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ZeroDivisionError), cuda_check.nvml_first():
        raise ZeroDivisionError
    assert VARIABLE not in os.environ


def test_the_answer_is_that_of_pytorch():
    assert is_cuda_available() == torch.cuda.is_available()
