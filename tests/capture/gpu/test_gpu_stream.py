"""CUDA events pass through capture: a loop is recorded, and the traces of the profiler contain the kernels of a GPU.

The profiler itself needs a GPU to see kernels; what it would write is added to what it writes (see `GpuStream`).
"""

from __future__ import annotations

import torch
from torch.profiler import profile

import gpulab
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.rules import diagnose
from gpulab.tables import EventKind
from tests.support import nvml_standin
from tests.support.runs.gpu_stream import LAUNCHING, GpuStream


def train(steps: int = 60) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
    data = torch.utils.data.TensorDataset(torch.randn(8 * steps, 32))
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def recorded(monkeypatch, kernel_us):
    stream = GpuStream(kernel_us)
    monkeypatch.setattr(profile, "export_chrome_trace", stream.exported_by(profile.export_chrome_trace))
    with gpulab.profile("on a GPU") as session:
        train()
    return session.run, stream


def test_each_kernel_is_recorded_once_with_the_call_that_launched_it(monkeypatch):
    run, stream = recorded(monkeypatch, 2.0)
    kernels, calls = (run.event_rows.of_kind(kind) for kind in (EventKind.KERNEL, EventKind.LAUNCH))
    assert 0 < len(kernels) == len(calls) == stream.launched
    assert sorted(kernels["correlation"]) == sorted(calls["correlation"])
    operators = run.event_rows.of_kind(EventKind.OP).text("name").to_list()
    assert sum(name in LAUNCHING for name in operators) == stream.launched


def test_short_kernels_leave_the_gpu_idle_and_no_finding_blames_the_gpu(monkeypatch):
    # Which finding comes first depends on what else the machine does.
    run, _ = recorded(monkeypatch, 2.0)
    ledger = build_ledger(run, find_steps(run))
    assert ledger.device == "gpu"
    assert ledger.idle_frac > 0.5
    busy = {part.key for part in ledger.parts if part.busy}
    assert not [finding.rule for finding in diagnose(run).findings if busy & set(finding.ledger_parts)]


def test_steps_are_those_of_the_gpu_if_the_host_runs_ahead(monkeypatch):
    run, _ = recorded(monkeypatch, 20_000.0)
    steps = find_steps(run)
    assert steps.host is not None
    assert build_ledger(run, steps).busy_frac > 0.9


def test_sensors_of_the_gpu_are_in_the_same_run(monkeypatch, tmp_path):
    installed = nvml_standin.installed(nvml_standin.build(tmp_path), monkeypatch)
    standin = next(installed)
    standin.reset(1)
    standin.name(0, b"NVIDIA H200")
    try:
        run, _ = recorded(monkeypatch, 2.0)
        assert [gpu.name for gpu in run.machine.gpus] == ["NVIDIA H200"]
        assert set(run.gpu_rows["device"]) == {0}
        assert "H200" in str(gpulab.report(run))
    finally:
        next(installed, None)
