"""Stage: loops with a planted cause: is it the first finding, and does the fix gain what was predicted.

Each loop is recorded, diagnosed, and timed without a profiler, before and after its fix in turns. The virtual GPU then
plays both sides, each loop in a process of its own, several at a time. Each half leaves a file; a later call continues
where one stopped.

    python -m benchmarks.gpu_visit.stages.planted real|virtual FOLDER NAME... [--gpu GPU] [--dry-run]
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.gpu_visit.planted_loops import PLANTED_LOOPS, PlantedLoop, planted_loop
from benchmarks.gpu_visit.planted_loops.judging import HEAD, counts, is_lost, row_of
from benchmarks.gpu_visit.planted_loops.measuring import measured, played
from benchmarks.gpu_visit.processes import run_python
from benchmarks.gpu_visit.this_gpu import NOT_LISTED, listed_gpu
from benchmarks.gpu_visit.visit import Check, StageResult, Visit, read_json, write_json
from gpulab.errors import GpulabError

REAL, VIRTUAL = "real", "virtual"
LIMIT_S = 120.0  # for some loops on the GPU, or for one on the virtual GPU
PARTS_AT_ONCE = 6  # loops measured in one process: each start costs seconds
DRY_GPU = "h100"


def planted(visit: Visit) -> StageResult:
    """Measure every loop, then let the virtual GPU play every loop; what is there already stays."""
    for _ in real_parts(visit):
        visit.save(result_of(visit))
    missing = [loop for loop in PLANTED_LOOPS if read_json(part_file(visit, loop, VIRTUAL)) is None]
    with ThreadPoolExecutor(1 if visit.dry_run else max(1, (os.cpu_count() or 2) // 2)) as pool:
        for _ in pool.map(lambda loop: play(visit, loop), missing):
            visit.save(result_of(visit))
    return result_of(visit)


def part_file(visit: Visit, loop: PlantedLoop, side: str) -> Path:
    """The file of one half of a loop."""
    return visit.parts_folder() / f"{loop.name}.{side}.json"


def real_parts(visit: Visit) -> Iterator[None]:
    """Measure the loops that have no file, in one process as long as it lives; yields from time to time."""
    while missing := [loop.name for loop in PLANTED_LOOPS if read_json(part_file(visit, loop, REAL)) is None]:
        if visit.dry_run:
            measure(missing[:1], visit.parts_folder(), dry_run=True)
        else:
            run_python(["-m", __spec__.name, REAL, str(visit.parts_folder()), *missing[:PARTS_AT_ONCE]], LIMIT_S)
        yield


def measure(names: Sequence[str], folder: Path, *, dry_run: bool) -> None:
    """Measure loops on the GPU in this process. A loop that ends the process leaves a file that says so."""
    for name in names:
        path, loop = folder / f"{name}.{REAL}.json", planted_loop(name)
        write_json(path, {"error": "the process ended in this loop"})
        try:
            write_json(path, measured(loop, dry_run=dry_run))
        except (RuntimeError, GpulabError) as error:
            write_json(path, {"error": f"{type(error).__name__}: {error}"[:1500]})


def play(visit: Visit, loop: PlantedLoop) -> None:
    """Play a loop on the virtual GPU: in this process in a dry run, which has no GPU to hide."""
    path, gpu = part_file(visit, loop, VIRTUAL), listed_gpu()
    if visit.dry_run:
        write_json(path, played(loop, DRY_GPU, dry_run=True))
    elif gpu is None:
        write_json(path, {"error": NOT_LISTED})
    else:
        command = ["-m", __spec__.name, VIRTUAL, str(visit.parts_folder()), loop.name, "--gpu", gpu]
        problem = run_python(command, LIMIT_S, hide_gpu=True)[1]
        if problem:
            write_json(path, {"error": problem})


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
    """Measure one half of some loops and write the figures of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("side", choices=[REAL, VIRTUAL])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+", choices=[loop.name for loop in PLANTED_LOOPS], metavar="NAME")
    parser.add_argument("--gpu", default=DRY_GPU, help="the virtual GPU")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args(arguments)
    if options.side == REAL:
        measure(options.names, options.folder, dry_run=options.dry_run)
        return
    for name in options.names:
        figures = played(planted_loop(name), options.gpu, dry_run=options.dry_run)
        write_json(options.folder / f"{name}.{VIRTUAL}.json", figures)


if __name__ == "__main__":
    main()
