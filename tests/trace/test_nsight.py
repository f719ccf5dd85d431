"""Exports of Nsight Systems give the same run as the trace of PyTorch's profiler of the same work."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

import gpulab
from gpulab.analysis.copies.copy_table import copy_table
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.errors import RunError, TraceError
from gpulab.files import Ranks, load_run
from gpulab.run import Run
from gpulab.tables import EventKind
from tests.support.nsight_export import (
    DEVICE,
    DOMAIN_CREATE,
    HTOD,
    MANAGED,
    MARK,
    NEW,
    OLD,
    PAGEABLE,
    START_END,
    UNIFIED_HTOD,
    NsightExport,
    export_of,
    global_id,
)

SCHEMAS = {"2021.1": OLD, "2024.6": NEW}


def names_of(run: Run, *kinds: EventKind) -> list[str | None]:
    return run.event_rows.of_kind(*kinds).text("name").to_list()


def event_rows(run: Run) -> list[tuple[object, ...]]:
    """All events, in an order that does not depend on the file; version 2021.1 has no kind of memory for a memset."""
    events = run.events
    names = events["name"].astype(str).str.replace("Memset (Device)", "Memset")
    columns = ["kind", "start_ns", "dur_ns", "device", "stream", "correlation"]
    return sorted(zip(names, *(events[name].tolist() for name in columns), strict=True))


def launches(run: Run) -> list[tuple[object, ...]]:
    """Start and launch configuration of every kernel."""
    start = run.event_rows["start_ns"][run.grid_rows["event"]].tolist()
    columns = [run.grid_rows[name].tolist() for name in ("grid", "block", "registers", "shared_bytes")]
    return sorted(zip(start, *columns, strict=True))


@pytest.mark.parametrize("version", SCHEMAS)
def test_an_export_gives_the_same_run_as_the_kineto_trace_of_the_same_work(tmp_path, recorded, version):
    original = gpulab.load(recorded("v100_resnet50_workers0.json.gz"))
    run = gpulab.load(export_of(original, SCHEMAS[version]).write(tmp_path / "report.sqlite"))
    assert event_rows(run) == event_rows(original)
    assert launches(run) == launches(original)
    steps, expected_steps = find_steps(run), find_steps(original)
    assert steps.step_ns == expected_steps.step_ns
    ledger, expected_ledger = build_ledger(run, steps), build_ledger(original, expected_steps)
    assert ledger is not None
    assert expected_ledger is not None
    for key, part_ns in expected_ledger.part_ns.items():
        assert np.array_equal(ledger.part_ns[key], part_ns)
    assert gpulab.diagnose(run).first.rule == gpulab.diagnose(original).first.rule == "no_workers"
    assert run.machine.gpus == original.machine.gpus
    assert run.source.device == original.source.device


def test_without_operators_the_cause_of_idle_time_is_not_judged(tmp_path, recorded):
    export = export_of(gpulab.load(recorded("v100_resnet50_workers0.json.gz")), NEW)
    steps = [row for row in export.rows["NVTX_EVENTS"] if "ProfilerStep" in row.get("text", "")]
    registered = {number for text, number in export.strings.items() if text.startswith("ProfilerStep")}
    steps += [row for row in export.rows["NVTX_EVENTS"] if row.get("textId") in registered]
    export.rows["NVTX_EVENTS"] = [
        {**row, "textId": None, "text": f"train iteration {index}"} for index, row in enumerate(steps)
    ]
    run = gpulab.load(export.write(tmp_path / "report.sqlite"))
    diagnosis = gpulab.diagnose(run)
    assert diagnosis.first is None
    assert diagnosis.steps.detected_by == "ranges named train iteration 0"
    assert diagnosis.ledger.idle_frac == pytest.approx(0.45, abs=0.02)
    assert [part.label for part in diagnosis.ledger.parts][-1] == "host outside CUDA calls"
    assert {"no_workers", "host_python", "dispatch_bound"} <= {answer.rule for answer in diagnosis.unjudged}
    assert "emit_nvtx" in diagnosis.verdict
    report = str(gpulab.report(run))
    assert "Python code" not in report
    assert "profiler: Nsight Systems" in report
    for change in ("no_python", "cuda_graphs", "workers=4"):
        with pytest.raises(RunError, match="operators of PyTorch were not recorded"):
            run.whatif(change)


def small_export() -> NsightExport:
    """One kernel, launched by a call of the main thread."""
    export = NsightExport()
    export.call("cudaLaunchKernel_v7000", 100, 200, 5)
    export.kernel("void gemm<float>(int)", 300, 900, correlationId=5, gridX=10, gridY=2, registersPerThread=40)
    return export


def test_calls_and_work_are_classified_and_linked(tmp_path):
    export = small_export()
    export.call("cudaStreamSynchronize_v3020", 200, 2000, 6)
    export.call("cudaMemcpyAsync_v3020", 2000, 2100, 7, tid=2)
    copy = {"streamId": 7, "correlationId": 7, "globalPid": global_id(1), "bytes": 4096}
    export.add(
        "CUPTI_ACTIVITY_KIND_MEMCPY", start=2200, end=2300, **copy, copyKind=HTOD, srcKind=PAGEABLE, dstKind=DEVICE
    )
    copy["correlationId"] = 0
    export.add("CUPTI_ACTIVITY_KIND_MEMCPY", start=2400, end=2500, **copy, copyKind=UNIFIED_HTOD, srcKind=MANAGED)
    run = gpulab.load(export.write(tmp_path / "report.sqlite"))
    kinds = dict(zip(names_of(run, *EventKind), run.event_rows["kind"].tolist(), strict=True))
    assert kinds == {
        "cudaLaunchKernel": EventKind.LAUNCH,
        "cudaStreamSynchronize": EventKind.SYNC,
        "cudaMemcpyAsync": EventKind.COPY_CALL,
        "void gemm<float>(int)": EventKind.KERNEL,
        "Memcpy HtoD (Pageable -> Device)": EventKind.MEMCPY,
        "Unified memory migration HtoD (Managed)": EventKind.MEMCPY,
    }
    assert run.event_rows["start_ns"].tolist() == [0, 100, 200, 1900, 2100, 2300]
    assert run.event_rows["correlation"].tolist() == [5, 6, 5, 7, 7, -1]
    assert run.event_rows["thread"].tolist() == [0, 0, -1, 1, -1, -1]
    assert run.grids[["grid", "block", "registers"]].to_numpy().tolist() == [[20, 128, 40]]
    assert copy_table(run).text("host_memory").to_list() == ["pageable", "managed"]


def test_ranges_of_emit_nvtx_are_operators_and_others_are_annotations(tmp_path):
    export = small_export()
    export.range("forward", 10, 90)
    export.range("aten::add, seq = 12, op_id = 4, sizes = [[8, 4]]", 20, 80)
    export.range("aten::empty, op_id = 5", 30, 40, registered=True)
    export.range("AddmmBackward0, seq = 3", 50, 60, tid=2)
    export.range("Optimizer.step#SGD.step, op_id = 9", 91, 99)
    export.range("NCCL", 0, None, eventType=DOMAIN_CREATE, domainId=3)
    export.range("ncclAllReduce", 92, 94, domainId=3)
    export.range("a mark", 95, None, eventType=MARK)
    export.range("never closed", 95, None)
    export.range("across threads", 15, 500, eventType=START_END)
    run = gpulab.load(export.write(tmp_path / "report.sqlite"))
    assert names_of(run, EventKind.OP) == ["aten::add", "aten::empty", "AddmmBackward0"]
    assert sorted(map(str, names_of(run, EventKind.ANNOTATION))) == [
        "NCCL:ncclAllReduce",
        "Optimizer.step#SGD.step",
        "across threads",
        "forward",
    ]
    threads = dict(zip(run.event_rows.text("name").to_list(), run.event_rows["thread"].tolist(), strict=True))
    lanes = {run.threads[threads["across threads"]]}
    assert lanes == {"thread 1, start-end ranges"}


def test_numbered_outermost_ranges_of_one_thread_are_the_steps(tmp_path):
    export = small_export()
    for step in range(4):
        export.range(f"step {step}", 1000 * step, 1000 * step + 900)
        export.range(f"batch {step}", 1000 * step + 10, 1000 * step + 500)
        export.range(f"validation step {step}", 1000 * step + 910, 1000 * step + 950)
        export.range("batch_size 32", 1000 * step + 600, 1000 * step + 700)
    run = gpulab.load(export.write(tmp_path / "report.sqlite"))
    assert names_of(run, EventKind.STEP) == ["step 0", "step 1", "step 2", "step 3"]
    assert find_steps(run).dur_ns.tolist()[:3] == [1000, 1000, 1000]


def test_each_process_that_used_a_gpu_is_a_run(tmp_path):
    export = NsightExport()
    for pid, device in ((300, 0), (200, 1)):
        export.call("cudaLaunchKernel_v7000", pid, pid + 10, 1, pid=pid, tid=pid)
        export.kernel(f"kernel_of_{pid}", 1000 + pid, 2000 + pid, pid=pid, device=device, correlationId=1)
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId=device, cudaId=device, pid=pid)
        export.add("TARGET_INFO_GPU", id=device, name=f"GPU {device}", computeMajor=9, computeMinor=0)
    export.call("cudaGetDeviceCount_v2000", 1, 2, 1, pid=400)
    path = export.write(tmp_path / "job.sqlite")
    ranks = gpulab.load(path)
    assert isinstance(ranks, Ranks)
    assert [run.name for run in ranks] == ["job, process 300", "job, process 200"]  # by GPU
    assert [names_of(run, EventKind.KERNEL) for run in ranks] == [["kernel_of_300"], ["kernel_of_200"]]
    assert [[gpu.name for gpu in run.machine.gpus] for run in ranks] == [["GPU 0"], ["GPU 1"]]
    assert [len(run.event_rows) for run in ranks] == [2, 2]
    assert [len(run.event_rows) for run in gpulab.load(tmp_path)] == [2, 2]  # also from its folder
    with pytest.raises(TraceError, match="not one run"):
        load_run(path)


def test_date_host_version_and_driver_are_read(tmp_path):
    export = small_export()
    export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000)
    export.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="node7")
    export.add("TARGET_INFO_SYSTEM_ENV", name="NVIDIA driver version", value="550.54")
    export.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2024.6.2.225")
    export.add("PROCESSES", globalPid=global_id(1), pid=1, name="python")
    export.add("ThreadNames", nameId=export.string("pt_main_thread"), globalTid=global_id(1, 1))
    run = gpulab.load(export.write(tmp_path / "report.sqlite"))
    assert run.began_ns == 1_700_000_000_000_000_100
    assert run.source.date == "2023-11-14"
    assert run.facts["host"] == "node7"
    assert run.facts["program"] == "python"
    assert run.facts["process"] == "1"
    assert run.facts["profiler"] == "Nsight Systems 2024.6.2.225"
    assert run.machine.driver == "550.54"
    assert run.threads == ("pt_main_thread",)


def test_graphs_recorded_as_one_piece_are_device_work_and_a_gap(tmp_path):
    export = small_export()
    graph = {"streamId": 7, "correlationId": 8, "globalPid": global_id(1)}
    export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=1000, end=5000, **graph)
    run = gpulab.load(export.write(tmp_path / "report.sqlite"))
    assert names_of(run, EventKind.KERNEL) == ["void gemm<float>(int)", "CUDA graph"]
    assert any("--cuda-graph-trace=node" in gap.fix for gap in run.recording.left_out)


def test_a_run_of_nsight_systems_is_saved_and_loaded_without_change(tmp_path):
    run = gpulab.load(small_export().write(tmp_path / "report.sqlite"))
    again = gpulab.load(gpulab.save(run, tmp_path / "run.gpulab"))
    assert again.events.equals(run.events)
    assert again.grids.equals(run.grids)
    assert again.facts == run.facts
    assert again.recording == run.recording


def database(path: Path, *statements: str) -> Path:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return path


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        (("CREATE TABLE experiments (id INTEGER)",), "none of the tables that nsys writes"),
        (
            ("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT)", "CREATE TABLE StringTable (value TEXT)"),
            "written by nvprof",
        ),
        (("CREATE TABLE StringIds (id INT, value TEXT)", "CREATE TABLE META_DATA_EXPORT (name TEXT)"), "--trace=cuda"),
        (("CREATE TABLE NVTX_EVENTS (start INT, end INT, text TEXT)",), "no CUDA or NVTX events"),
    ],
)
def test_a_database_of_something_else_is_refused(tmp_path, statements, expected):
    with pytest.raises(TraceError, match=expected):
        gpulab.load(database(tmp_path / "other.sqlite", *statements))


@pytest.mark.parametrize(("name", "loads_folder"), [("report.nsys-rep", False), ("renamed", False), ("r.qdrep", True)])
def test_a_report_in_the_format_of_nsys_names_the_command_that_exports_it(tmp_path, name, loads_folder):
    (tmp_path / name).write_bytes(b"NVIDIA Tegra Profiler Report 2024@6@2@225" + bytes(1000))
    with pytest.raises(TraceError, match="nsys export --type sqlite"):
        gpulab.load(tmp_path if loads_folder else tmp_path / name)


def test_a_damaged_database_is_an_expected_failure(tmp_path, recorded):
    original = export_of(gpulab.load(recorded("v100_resnet50_workers0.json.gz")), NEW).write(tmp_path / "r.sqlite")
    data = original.read_bytes()
    for size in (16, 100, 4096, len(data) // 2):
        cut = tmp_path / f"cut{size}.sqlite"
        cut.write_bytes(data[:size])
        with pytest.raises(TraceError):
            gpulab.load(cut)


def test_a_folder_with_another_database_loads_the_exports_without_a_warning(tmp_path, recwarn):
    small_export().write(tmp_path / "report.sqlite")
    database(tmp_path / "mlflow.sqlite", "CREATE TABLE experiments (id INTEGER)")
    ranks = gpulab.load(tmp_path)
    assert [run.name for run in ranks] == ["report"]
    assert not recwarn.list
    assert not ranks.unread


def test_wrong_types_and_huge_numbers_cost_only_their_values(tmp_path):
    export = small_export()
    export.kernel("other", 1000, 1100, streamId="seven", deviceId=10**12, gridX=2**62, gridY=2**62)
    export.kernel("endless", 0, 2**62)
    run = gpulab.load(export.write(tmp_path / "report.sqlite"))
    other = run.events[run.events["name"] == "other"].iloc[0]
    assert other["device"] == -1
    assert dict(run.recording.lost) == {"event more than a week from the others": 1}
