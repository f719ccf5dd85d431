"""Traces of JAX's profiler give a timeline of the device with steps, and no advice for PyTorch."""

from __future__ import annotations

import gzip

import pytest

import gpulab
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.errors import RunError, TraceError
from gpulab.tables import EventKind
from tests.support.xla_trace import GPU, HOST, PYTHON, XlaTrace, training_trace


@pytest.mark.parametrize(("with_steps", "first"), [(True, "step 0"), (False, "jit_step")])
def test_steps_and_ledger_are_those_of_the_device(tmp_path, with_steps, first):
    run = gpulab.load(training_trace(with_steps=with_steps).write(tmp_path))
    steps = find_steps(run)
    assert steps.step_ns == 1_000_000
    assert steps.detected_by == f"ranges named {first}"
    ledger = build_ledger(run, steps)
    assert ledger is not None
    shares = {key: ledger.typical_frac(key) for key in ("matmul", "kernels", "copies", "python")}
    assert shares == pytest.approx({"matmul": 0.4, "kernels": 0.3, "copies": 0.1, "python": 0.2}, abs=1e-9)


def test_kernels_copies_calls_and_frames_are_classified(tmp_path):
    run = gpulab.load(training_trace(steps=3).write(tmp_path))
    rows = run.event_rows
    kinds = dict(zip(rows.text("name").to_list(), map(EventKind, rows["kind"].tolist()), strict=True))
    assert kinds["gemm_fusion_dot_1"] is EventKind.KERNEL
    assert kinds["Memcpy HtoD (Pinned -> Device)"] is EventKind.MEMCPY
    assert kinds["cuLaunchKernel"] is EventKind.LAUNCH
    assert kinds["$train.py:12 train_step"] is EventKind.PYTHON
    assert kinds["PjitFunction(step)"] is EventKind.ANNOTATION
    assert "fusion.1" not in kinds  # a summary of the kernels, not work
    assert rows.of_kind(EventKind.MEMCPY)["bytes"].tolist() == [4096] * 3
    assert run.grids[["grid", "block", "registers", "shared_bytes"]].drop_duplicates().to_numpy().tolist()[:1] == [
        [216, 256, 32, 1024]
    ]
    assert set(rows["stream"][rows["device"] >= 0].tolist()) == {13, 14}


def test_nothing_about_pytorch_is_judged(tmp_path):
    run = gpulab.load(training_trace().write(tmp_path))
    diagnosis = gpulab.diagnose(run)
    assert not diagnosis.findings
    assert diagnosis.verdict.startswith("No diagnosis")
    assert "idle 20 %" in diagnosis.verdict
    report = str(gpulab.report(run))
    for word in ("torch", "num_workers", "DataLoader"):
        assert word not in report
    assert run.facts["framework"] == "JAX"
    with pytest.raises(RunError, match="not of PyTorch"):
        run.whatif("amp")


def test_a_trace_without_gpu_has_events_but_no_step_time(tmp_path):
    trace = XlaTrace()
    del trace.processes[GPU]
    for step in range(8):
        trace.add(PYTHON, "train", 10.0 * step, 9.0, process=HOST, step_num=str(step))
    run = gpulab.load(trace.write(tmp_path))
    assert len(run.event_rows) == 8
    assert find_steps(run).step_ns is None
    assert gpulab.diagnose(run).verdict.startswith("No diagnosis: the trace of JAX contains no GPU work")


def test_a_truncated_trace_gives_the_events_before_the_end(tmp_path):
    text = training_trace(steps=20).text()
    path = tmp_path / "host.trace.json.gz"
    path.write_bytes(gzip.compress(text)[:-200])
    run = gpulab.load(path)
    assert run.recording.lost
    assert len(run.event_rows.of_kind(EventKind.KERNEL)) >= 2


def test_a_trace_of_a_tpu_is_refused(tmp_path):
    trace = training_trace()
    trace.processes[GPU] = "/device:TPU:0"
    with pytest.raises(TraceError, match="TPU"):
        gpulab.load(trace.write(tmp_path))


def test_kineto_traces_are_not_taken_for_jax(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(
        '{"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},'
        '{"ph": "X", "cat": "cpu_op", "name": "/host:CPU", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]}'
    )
    assert "framework" not in gpulab.load(path).facts
