"""Virtual GPU whose program takes the same Python time in every run, whatever the load of the machine."""

import pytest

PYTHON_NS = 4_000  # between two records


@pytest.fixture
def constant_python_time(monkeypatch):
    """Replace the measured Python time between two records by a constant."""
    from gpulab.virtual.device.recorder import OpRecorder

    monkeypatch.setattr(OpRecorder, "take_python_ns", lambda _: PYTHON_NS)
