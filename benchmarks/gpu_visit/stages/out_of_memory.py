"""Stage: a loop that really runs out of GPU memory, and what gpulab says of it.

The memory of this process is limited, so that the error comes soon and the GPU is never full.
"""

from __future__ import annotations

import ast
import gc
from typing import Any

import torch
from torch import nn

import gpulab
from benchmarks.gpu_visit.visit import Check, StageResult, Visit, save_run
from gpulab.run import Run
from gpulab.workloads import workload

LIMIT_BYTES = 2 * 2**30
WIDTH, FIRST_BATCH, GROWS_BY = 2048, 1024, 128  # some 80 steps fit


def out_of_memory(visit: Visit) -> StageResult:
    """Run out of memory in a recorded block; in a dry run, on the simulated card of a workload."""
    error = ""
    before = 0 if visit.dry_run else limited_memory()
    try:
        with gpulab.profile("out_of_memory") as session:
            if visit.dry_run:
                workload("large_batch").run(steps=12)
            else:
                train_with_growing_batches()
    except (torch.cuda.OutOfMemoryError, MemoryError) as problem:
        error = f"{type(problem).__name__}: {problem}"
    run = session.run
    assert run is not None
    gc.collect()
    if not visit.dry_run:
        torch._C._cuda_clearCublasWorkspaces()  # they stay as long as the process
    after = 0 if visit.dry_run else torch.cuda.memory_allocated()
    diagnosis = gpulab.diagnose(run)
    first = diagnosis.first
    (visit.parts_folder() / "report.txt").write_text(str(gpulab.report(run)), encoding="utf-8")
    figures = {
        "error": error,
        "failure": repr(run.failure),
        "holders": len(run.holder_rows),
        "first": first.rule if first else None,
        "claim": first.claim if first else None,
        "evidence": first.evidence if first else (),
        "fix": first.fix if first else "",
        "advice": first.advice if first else "",
        "remaining_bytes": after - before,
        "file": save_run(run, visit.parts_folder() / "run.gpulab"),
    }
    return StageResult(
        headline=first.claim if first else "no finding",
        figures=figures,
        checks=checks(run, figures, on_gpu=not visit.dry_run),
    )


def limited_memory() -> int:
    """Limit what PyTorch may allocate in this process; return what it has allocated."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, LIMIT_BYTES / total))
    return int(torch.cuda.memory_allocated())


def train_with_growing_batches(steps: int = 400) -> None:
    """Train on batches that grow until their activations do not fit."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(8))).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(steps):
        inputs = torch.randn(FIRST_BATCH + step * GROWS_BY, WIDTH, device="cuda")
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs).backward()
        optimizer.step()


def checks(run: Run, figures: dict[str, Any], *, on_gpu: bool) -> list[Check]:
    """The error is recorded with its figures, explained, and nothing stays allocated afterwards."""
    failure = run.failure
    amounts = ("needed_bytes", "free_bytes", "capacity_bytes", "allocated_bytes", "reserved_bytes")
    unknown = [name for name in amounts if failure is not None and getattr(failure, name) is None]
    remaining = figures["remaining_bytes"]
    judged = [
        Check(name="the error reaches the program", holds=bool(figures["error"]), detail=figures["error"][:200]),
        Check(name="the failure is recorded", holds=failure is not None),
        Check(name="it is the first finding", holds=figures["first"] == "out_of_memory", detail=str(figures["first"])),
        Check(name="the line is named", holds=bool(failure and failure.where)),
        Check(name="the phase is named", holds=bool(failure and failure.phase)),
        Check(name="owners of the memory are listed", holds=figures["holders"] > 0),
        Check(name="the printed fix can be parsed", holds=_parses(figures["fix"])),
    ]
    real = [
        Check(name="all amounts are read from the error", holds=not unknown, detail=", ".join(unknown)),
        Check(name="the failure is not called simulated", holds=bool(failure and not failure.simulated)),
        Check(name="nothing stays allocated", holds=remaining < 2**20, detail=f"{remaining:,} bytes"),
    ]
    return judged + (real if on_gpu else [Check(name=each.name, holds=None, detail="needs a GPU") for each in real])


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:
        return False
    return True
