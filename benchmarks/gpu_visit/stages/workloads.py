"""Stage: gpulab's workloads on the GPU: is the planted cause the first finding. Runs are saved.

All run in one process. The stage `virtual_gpu` compares these step times and peaks with those of the virtual GPU.
"""

from __future__ import annotations

import gc
import time
import traceback
from typing import Any

import torch

import gpulab
from benchmarks.gpu_visit.visit import Check, StageResult, Visit, read_json, save_run, write_json
from benchmarks.virtual.hardware import NAMES
from gpulab.analysis.steps.detection import find_steps
from gpulab.tables import EventKind
from gpulab.workloads import WORKLOADS, Workload

DRY_NAMES = ("tiny_ops",)
SKIPPED = ("lengths",)  # it compiles a model for every length, which takes a minute
WARM_STEPS = 3
HEAD = ("workload", "planted", "first finding", "verdict")


def workloads(visit: Visit) -> StageResult:
    """Record workload after workload; what is there already stays."""
    result = StageResult()
    for each in chosen(dry_run=visit.dry_run):
        path = visit.parts_folder() / f"{each.name}.json"
        if read_json(path) is None:
            write_json(path, recorded(each, visit))
        result = result_of(visit)
        visit.save(result)
    return result


def chosen(*, dry_run: bool) -> list[Workload]:
    """Those with a planted cause and their twins on a GPU; those that need a GPU first: nothing else can test them."""
    recorded_ones = [each for each in WORKLOADS if (each.rule or each.name in NAMES) and each.name not in SKIPPED]
    if dry_run:
        return [each for each in recorded_ones if each.name in DRY_NAMES]
    return sorted(recorded_ones, key=lambda each: (not each.needs_gpu, not each.rule))


def recorded(workload: Workload, visit: Visit) -> dict[str, Any]:
    """The first findings of a recorded workload, or the error."""
    began_s = time.perf_counter()
    try:
        facts = diagnosed(workload, visit)
    except Exception as error:  # whatever breaks one workload is a result of the visit
        facts = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()[-3000:]}
    gc.collect()
    if not visit.dry_run:
        torch.cuda.empty_cache()
    return {"workload": workload.name, "planted": workload.rule, "seconds": time.perf_counter() - began_s, **facts}


def diagnosed(workload: Workload, visit: Visit) -> dict[str, Any]:
    """Warm up, record, save and diagnose."""
    if not visit.dry_run:
        workload.run(device=visit.device, steps=WARM_STEPS)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    problem = ""
    with gpulab.profile(workload.name) as session:
        try:
            workload.run(device=visit.device)
        except torch.cuda.OutOfMemoryError as error:  # planted in large_batch
            problem = f"{type(error).__name__}: {error}"[:500]
    run = session.run
    assert run is not None
    diagnosis = gpulab.diagnose(run)
    return {
        "problem": problem,
        "step_ns": find_steps(run).step_ns,
        "kernels": len(run.event_rows.of_kind(EventKind.KERNEL)),
        "peak_bytes": 0 if visit.dry_run else torch.cuda.max_memory_allocated(),
        "rules": [finding.rule for finding in diagnosis.findings if not finding.informs_only],
        "verdict": diagnosis.verdict,
        "unjudged": {each.rule: each.reason for each in diagnosis.unjudged},
        "file": save_run(run, visit.parts_folder() / f"{workload.name}.gpulab"),
    }


def result_of(visit: Visit) -> StageResult:
    """The table so far."""
    parts = [part for each in WORKLOADS if (part := read_json(visit.parts_folder() / f"{each.name}.json"))]
    judged = [part for part in parts if "rules" in part]
    flawed = [part for part in judged if part["planted"]]
    right = sum(part["rules"][:1] == [part["planted"]] for part in flawed)
    lost = [f"{part['workload']}: {part['error'][:80]}" for part in parts if "error" in part]
    return StageResult(
        headline=f"first finding as planted in {right} of {len(flawed)} workloads; {len(lost)} failed",
        figures={"parts": parts},
        checks=[Check(name="every workload ran", holds=not lost, detail="; ".join(lost))],
        head=HEAD,
        rows=[row_of(part) for part in judged],
    )


def row_of(part: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table."""
    return part["workload"], part["planted"] or "-", next(iter(part["rules"]), "none"), part["verdict"]
