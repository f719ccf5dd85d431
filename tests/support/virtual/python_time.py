"""Virtual GPU whose program takes the same host time in every run, whatever the load of the machine."""

import pytest

PYTHON_NS = 4_000  # between two records
CPU_OPERATOR_NS = 5_000  # of an operator on CPU tensors, e.g. the step counts of Adam


@pytest.fixture
def constant_python_time(monkeypatch):
    """Replace the measured Python time between two records by a constant."""
    from gpulab.virtual.device.recorder import OpRecorder

    monkeypatch.setattr(OpRecorder, "take_python_ns", lambda _: PYTHON_NS)


@pytest.fixture
def constant_host_time(constant_python_time, monkeypatch):
    """Replace the measured time of operators on CPU tensors by a constant, too."""
    from gpulab.virtual.device.recorder import OpRecorder

    host_op = OpRecorder.host_op
    monkeypatch.setattr(
        OpRecorder, "host_op", lambda self, name, tensors, _: host_op(self, name, tensors, CPU_OPERATOR_NS)
    )
