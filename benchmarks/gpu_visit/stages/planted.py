"""Stage: loops with a planted cause: is it the first finding, and does the fix gain what was predicted.

Each loop is recorded, diagnosed, and timed without a profiler, before and after its fix in turns. The virtual GPU then
plays both sides. Each half runs in a process of its own and leaves a file; a later call continues where one stopped.

    python -m benchmarks.gpu_visit.stages.planted NAME real|virtual OUT.json [--dry-run]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_visit.planted_loops import PLANTED_LOOPS, PlantedLoop
from benchmarks.gpu_visit.planted_loops.judging import HEAD, counts, is_lost, row_of
from benchmarks.gpu_visit.planted_loops.measuring import measured, played
from benchmarks.gpu_visit.processes import run_python
from benchmarks.gpu_visit.this_gpu import NOT_LISTED, listed_gpu
from benchmarks.gpu_visit.visit import Check, StageResult, Visit, read_json, write_json

REAL, VIRTUAL = "real", "virtual"
LIMIT_S = 120.0  # for one half of a loop
DRY_GPU = "h100"


def planted(visit: Visit) -> StageResult:
    """Measure every loop, then let the virtual GPU play every loop; what is there already stays."""
    result = StageResult()
    for side in (REAL, VIRTUAL):
        for loop in PLANTED_LOOPS:
            path = part_file(visit, loop, side)
            if read_json(path) is None:
                write_json(path, measured_part(visit, loop, side, path))
            result = result_of(visit)
            visit.save(result)
    return result


def part_file(visit: Visit, loop: PlantedLoop, side: str) -> Path:
    """The file of one half of a loop."""
    return visit.parts_folder() / f"{loop.name}.{side}.json"


def measured_part(visit: Visit, loop: PlantedLoop, side: str, path: Path) -> dict[str, Any]:
    """One half of a loop: in this process in a dry run, which has no GPU to hide, otherwise in one of its own."""
    if visit.dry_run:
        return part(loop, side, dry_run=True)
    gpu = listed_gpu()
    if side == VIRTUAL and gpu is None:
        return {"error": NOT_LISTED}
    command = ["-m", "benchmarks.gpu_visit.stages.planted", loop.name, side, str(path)]
    problem = run_python([*command, "--gpu", gpu or DRY_GPU], LIMIT_S, hide_gpu=side == VIRTUAL)[1]
    figures: dict[str, Any] | None = read_json(path)
    return figures or {"error": problem}


def part(loop: PlantedLoop, side: str, *, gpu: str = DRY_GPU, dry_run: bool) -> dict[str, Any]:
    """Measure one half of a loop in this process."""
    return measured(loop, dry_run=dry_run) if side == REAL else played(loop, gpu, dry_run=dry_run)


def result_of(visit: Visit) -> StageResult:
    """The result of all loops so far."""
    halves = {
        loop.name: {side: read_json(part_file(visit, loop, side)) for side in (REAL, VIRTUAL)} for loop in PLANTED_LOOPS
    }
    rows = [row_of(loop, halves[loop.name]) for loop in PLANTED_LOOPS if halves[loop.name][REAL] is not None]
    lost = [f"{name} {side}" for name, sides in halves.items() for side, half in sides.items() if is_lost(half)]
    checks = [Check(name="every loop ran", holds=not lost, detail=", ".join(lost))]
    if visit.dry_run:  # two tiny steps: neither a finding nor a gain means anything
        headline = f"{len(rows)} loops ran for two steps, before and after their fix"
        return StageResult(headline=headline, figures={"loops": halves}, checks=checks)
    headline, figures = counts(PLANTED_LOOPS, halves)
    return StageResult(
        headline=headline, figures={"counts": figures, "loops": halves}, checks=checks, head=HEAD, rows=rows
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure one half of a loop and write its figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=[loop.name for loop in PLANTED_LOOPS])
    parser.add_argument("side", choices=[REAL, VIRTUAL])
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpu", default=DRY_GPU, help="the virtual GPU")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args(arguments)
    loop = next(loop for loop in PLANTED_LOOPS if loop.name == options.name)
    write_json(options.out, part(loop, options.side, gpu=options.gpu, dry_run=options.dry_run))


if __name__ == "__main__":
    main()
