"""Stage: loops of benchmarks/wild that use CUDA where there is a GPU: first finding against the fastest change.

Their sizes are for a CPU, so that most keep a GPU waiting. Each loop is measured in one round, with every change, and
recorded once, in processes of their own; a loop that fails, or needs a package that is missing, leaves its reason.
"""

from __future__ import annotations

import importlib.util
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

from benchmarks.gpu_visit.processes import run_python
from benchmarks.gpu_visit.visit import Check, StageResult, Visit, read_json, write_json
from benchmarks.wild.diagnose import judge
from benchmarks.wild.loop import Loop, cell_code, cell_source
from benchmarks.wild.outcome import read_outcomes
from benchmarks.wild.registry import load_loop, loop_names
from benchmarks.wild.verdict import loop_result

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 60.0  # for all variants of a loop, and for its recording
EXPECTED_S, LEAST_SCALE, MOST_SCALE = 25.0, 0.05, 0.3  # seconds for all variants on a CPU; share of the full size
SAVED_BYTES = 300_000  # of a run, at most: there are many
FRAMEWORKS = ("lightning", "transformers", "accelerate", "datasets", "torchdata", "tokenizers", "networkx")


def wild(visit: Visit) -> StageResult:
    """Measure loop after loop until the time ends; in a dry run, compile every cell and run none."""
    names = in_turns([name for name in loop_names() if uses_cuda(name)])
    if visit.dry_run:
        cells = sum(compiled_cells(load_loop(name)) for name in names)
        checks = [Check(name="there are loops that use CUDA", holds=bool(names))]
        headline = f"{len(names)} loops use CUDA where there is a GPU; {cells} cells compile, none was run"
        return StageResult(headline=headline, figures={"loops": names, "cells": cells}, checks=checks)
    result = StageResult(skipped="no loop uses CUDA")
    for name in names:
        path = visit.parts_folder() / f"{name.replace('/', '_')}.json"
        if read_json(path) is None:
            write_json(path, measured_loop(name, visit.parts_folder()))
        result = result_of(names, visit.parts_folder())
        visit.save(result)
    return result


def in_turns(names: list[str]) -> list[str]:
    """One loop of each family, then the second of each: the time may not suffice for all."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(name.partition("/")[0], []).append(name)
    return [name for turn in zip_longest(*families.values()) for name in turn if name is not None]


def uses_cuda(name: str) -> bool:
    """Whether the source of a loop asks for CUDA, and the frameworks that it imports are installed."""
    source = (ROOT / "benchmarks" / "wild" / "loops" / f"{name}.py").read_text(encoding="utf-8")
    imports = [package for package in FRAMEWORKS if f"import {package}" in source or f"from {package}" in source]
    return "cuda" in source and all(map(is_installed, imports))


def is_installed(package: str) -> bool:
    """Whether a package is installed; a folder of the same name in the current directory is none."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def compiled_cells(loop: Loop) -> int:
    """Compile the cell and that of each change; return how many there are."""
    changes = [None, *loop.changes]
    for change in changes:
        cell_code(loop, change)
    return len(changes)


def measured_loop(name: str, folder: Path) -> dict[str, Any]:
    """Time every variant of a loop, record it, and judge its first finding."""
    stem = folder / name.replace("/", "_")
    outcomes, run = Path(f"{stem}.outcomes"), Path(f"{stem}.gpulab")
    loop = load_loop(name)
    if "cuda" not in cell_source(loop):
        return {"loop": name, "skipped": "its cell does not ask for CUDA"}
    problem = run_python(["-m", "benchmarks.wild.child", name, "all", scale_of(loop), str(outcomes)], LIMIT_S)[1]
    problem = problem or run_python(["-m", "benchmarks.wild.diagnose", "--record", name, str(run)], LIMIT_S)[1]
    if problem:
        outcomes.unlink(missing_ok=True)
        return {"loop": name, "error": problem}
    result = loop_result(loop, {key: [value] for key, value in read_outcomes(outcomes).items()}, float(scale_of(loop)))
    judged = judge(name, run, result)
    outcomes.unlink()
    if run.stat().st_size > SAVED_BYTES:
        run.unlink()
    return {"loop": name, "result": result, "judged": asdict(judged), "inside": judged.inside}


def scale_of(loop: Loop) -> str:
    """The share of the full size at which all variants together take some seconds."""
    variants = 2 + len(loop.changes)  # the unchanged cell runs twice
    return f"{min(MOST_SCALE, max(LEAST_SCALE, EXPECTED_S / (variants * loop.seconds))):.3f}"


def result_of(names: list[str], folder: Path) -> StageResult:
    """The table so far."""
    parts = [part for name in names if (part := read_json(folder / f"{name.replace('/', '_')}.json"))]
    judged = [part["judged"] for part in parts if "judged" in part]
    lost = [f"{part['loop']}: {part['error'].splitlines()[-1][:80]}" for part in parts if "error" in part]
    right = sum(verdict["right"] for verdict in judged)
    return StageResult(
        headline=f"{len(judged)} of {len(names)} loops judged, first finding right {right}; {len(lost)} failed",
        figures={"parts": parts},
        checks=[Check(name="every loop that was started ended", holds=not lost or None, detail="; ".join(lost))],
        head=HEAD,
        rows=[row_of(part) for part in parts if "judged" in part],
    )


HEAD = ("loop", "fastest change", "first finding", "predicted", "measured", "inside", "right")


def row_of(part: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table."""
    judged = part["judged"]
    predicted = judged["predicted"]
    return (
        judged["loop"],
        judged["best"],
        judged["rule"] or "none",
        f"{predicted[0]:.2f}-{predicted[1]:.2f}x" if predicted else "-",
        "-" if judged["measured"] is None else f"{judged['measured']:.2f}x",
        {True: "yes", False: "no", None: "-"}[part["inside"]],
        "yes" if judged["right"] else "no",
    )
