"""Stage: gpulab's workloads on the virtual GPU, compared with what the stage `workloads` measured."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu_visit.processes import run_python
from benchmarks.gpu_visit.this_gpu import NOT_LISTED, listed_gpu
from benchmarks.gpu_visit.visit import Check, StageResult, Visit, read_json, write_json
from benchmarks.virtual import hardware

DRY_NAMES, DRY_GPU = ("tiny_ops",), "h100"
LIMIT_S = 120.0  # for one workload


def virtual_gpu(visit: Visit) -> StageResult:
    """Play each workload on the virtual GPU, several at a time; in a dry run, one of them."""
    gpu = DRY_GPU if visit.dry_run else listed_gpu()
    if gpu is None:
        return StageResult(skipped=NOT_LISTED)
    names = DRY_NAMES if visit.dry_run else hardware.NAMES
    missing = [name for name in names if read_json(part_file(visit, name)) is None]
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
        for _ in pool.map(lambda name: play(visit, name, gpu), missing):
            visit.save(result_of(visit, gpu))
    return result_of(visit, gpu)


def part_file(visit: Visit, name: str) -> Path:
    """The file of a workload."""
    return visit.parts_folder() / f"{name}.json"


def play(visit: Visit, name: str, gpu: str) -> None:
    """Play one workload in a process that sees no GPU, and leave its figures, or what went wrong."""
    output, problem = run_python([hardware.__file__, "--one", name, gpu], LIMIT_S, hide_gpu=True)
    figures = {"error": f"virtual: {problem}"} if problem else {"virtual": json.loads(output.splitlines()[-1])}
    write_json(part_file(visit, name), {"workload": name, **figures})


def real_side(visit: Visit, name: str) -> dict[str, Any] | None:
    """What the stage `workloads` measured; None if it did not, or only in a dry run."""
    part = read_json(visit.folder / "workloads" / f"{name}.json")
    if visit.dry_run or not part or "error" in part or not part["step_ns"]:
        return None
    return {**part, "first": next(iter(part["rules"]), None)}


def result_of(visit: Visit, gpu: str) -> StageResult:
    """The table and its summary so far."""
    parts = [part for name in hardware.NAMES if (part := read_json(part_file(visit, name)))]
    rows = [{**part, "real": real_side(visit, part["workload"])} for part in parts if "error" not in part]
    lost = [part["workload"] for part in parts if "error" in part]
    pairs = [row for row in rows if row["real"]]
    headline = hardware.summary(pairs) if pairs else f"{len(rows)} workloads on a virtual {gpu}, none on a GPU"
    return StageResult(
        headline=headline,
        figures={"gpu": gpu, "rows": rows},
        checks=[Check(name="every workload ran", holds=not lost, detail=", ".join(lost))],
        head=HEAD,
        rows=[cells(row) for row in rows],
    )


HEAD = ("workload", "measured", "virtual", "range", "error", "peak", "virtual peak", "first finding", "virtual")


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table."""
    real, virtual = row["real"], row["virtual"]
    return (
        row["workload"],
        f"{real['step_ns'] / 1e6:.2f} ms" if real else "-",
        f"{virtual['step_ns'] / 1e6:.2f} ms",
        f"{virtual['low_ns'] / 1e6:.2f}-{virtual['high_ns'] / 1e6:.2f}",
        f"{virtual['step_ns'] / real['step_ns'] - 1:+.0%}" if real else "-",
        f"{real['peak_bytes'] / 2**20:.0f} MiB" if real else "-",
        f"{virtual['peak_bytes'] / 2**20:.0f} MiB",
        str(real["first"]) if real else "-",
        str(virtual["first"]),
    )
