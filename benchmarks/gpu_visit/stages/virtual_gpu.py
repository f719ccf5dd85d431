"""Stage: benchmarks/virtual/hardware.py, workload by workload, so that a stop loses one of them at most."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.gpu_visit.processes import run_python
from benchmarks.gpu_visit.this_gpu import NOT_LISTED, listed_gpu
from benchmarks.gpu_visit.visit import Check, StageResult, Visit, read_json, write_json
from benchmarks.virtual import hardware

DRY_NAMES, DRY_GPU = ("tiny_ops",), "h100"
REAL_STEPS, LIMIT_S = 60, 120.0  # seconds for one side of a workload


def virtual_gpu(visit: Visit) -> StageResult:
    """Run each workload on the real GPU and on the virtual one; in a dry run, one on the virtual GPU alone."""
    gpu = DRY_GPU if visit.dry_run else listed_gpu()
    if gpu is None:
        return StageResult(skipped=NOT_LISTED)
    result = StageResult()
    for name in DRY_NAMES if visit.dry_run else hardware.NAMES:
        path = visit.parts_folder() / f"{name}.json"
        if read_json(path) is None:
            write_json(path, compared(name, gpu, dry_run=visit.dry_run))
        result = result_of(visit, gpu)
        visit.save(result)
    return result


def compared(name: str, gpu: str, *, dry_run: bool) -> dict[str, Any]:
    """Both sides of a workload, or what went wrong."""
    sides: dict[str, Any] = {"workload": name, "real": None}
    for side, place in (("virtual", gpu), *(() if dry_run else (("real", "real"),))):
        command = [hardware.__file__, "--one", name, place, "--steps", str(REAL_STEPS)]
        output, problem = run_python(command, LIMIT_S, hide_gpu=side == "virtual")
        if problem:
            return {"workload": name, "error": f"{side}: {problem}"}
        sides[side] = json.loads(output.splitlines()[-1])
    return sides


def result_of(visit: Visit, gpu: str) -> StageResult:
    """The table and its summary so far."""
    parts = [part for name in hardware.NAMES if (part := read_json(visit.parts_folder() / f"{name}.json"))]
    rows = [part for part in parts if "error" not in part]
    lost = [part["workload"] for part in parts if "error" in part]
    pairs = [row for row in rows if row["real"]]
    headline = hardware.summary(pairs) if pairs else f"{len(rows)} workloads on a virtual {gpu}, none on a GPU"
    return StageResult(
        headline=headline,
        figures={"gpu": gpu, "rows": parts},
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
