"""Sweep over public model families or features on the virtual GPU: `python -m benchmarks.virtual.public.measure`.

Each runs in a fresh process, twice: with its module first imported before the virtual GPU exists, and inside its block.
With `--together`, one process runs all of them.
The results go to a JSON file and are printed as a table. No GPU and no download is needed.

    python -m benchmarks.virtual.public.measure --out build/public_models.json
    python -m benchmarks.virtual.public.measure --kind feature --out build/public_features.json
    python -m benchmarks.virtual.public.measure --names llama mixtral --when inside
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
STAGES = ("imports", "builds", "trains", "generates")
WHEN = ("before", "inside")
TIMEOUT_S = 180
PACKAGES = ("torch", "transformers", "accelerate", "lightning", "diffusers", "torch_geometric")


def main() -> None:
    """Run the sweep, print the table, write the JSON file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kind", choices=("family", "feature"), default="family")
    parser.add_argument("--names", nargs="+", help="only these")
    parser.add_argument("--when", nargs="+", choices=WHEN, default=list(WHEN))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--together", action="store_true", help="one process for all names: quicker")
    parser.add_argument("--out", type=Path, help="a JSON file for the results, with the versions of the packages")
    arguments = parser.parse_args()
    names = arguments.names or registered_names(arguments.kind)
    run = sweep_together if arguments.together else sweep
    results = run(arguments.kind, names, arguments.when, arguments.processes)
    print("\n".join(table(results)))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps({"versions": versions(), "results": results}, indent=1) + "\n")


def registered_names(kind: str) -> list[str]:
    """Return the names of all families or all features."""
    if kind == "feature":
        from benchmarks.virtual.public.features import FEATURES

        return list(FEATURES)
    from benchmarks.virtual.public.registry import FAMILIES

    return list(FAMILIES)


def sweep(kind: str, names: list[str], whens: list[str], processes: int = 2) -> dict[str, dict[str, Any]]:
    """Return the stages of every name, by the time of its import."""
    pairs = [(name, when) for name in names for when in whens]
    with ThreadPoolExecutor(processes) as pool:
        outcomes = list(pool.map(lambda pair: run_child(kind, pair[1], [pair[0]])[pair[0]], pairs))
    results: dict[str, dict[str, Any]] = {name: {} for name in names}
    for (name, when), stages in zip(pairs, outcomes, strict=True):
        results[name][when] = stages
    return results


def sweep_together(kind: str, names: list[str], whens: list[str], processes: int = 2) -> dict[str, dict[str, Any]]:
    """Do the same with one process for each time of import, in which the names run one after another."""
    with ThreadPoolExecutor(processes) as pool:
        outcomes = list(pool.map(lambda when: run_child(kind, when, names, TIMEOUT_S * len(names)), whens))
    by_when = dict(zip(whens, outcomes, strict=True))
    return {name: {when: by_when[when][name] for when in whens} for name in names}


def run_child(kind: str, when: str, names: list[str], timeout_s: float = TIMEOUT_S) -> dict[str, dict[str, Any]]:
    """Run names in a fresh process; return the stages of each. A stage that does not end within the time hangs."""
    command = [sys.executable, "-m", "benchmarks.virtual.public.child", kind, when, *names]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "GPULAB_HISTORY": "off",
                   "OMP_NUM_THREADS": "1"}  # fmt: skip
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT, env=environment, check=False
        )
        output, end = process.stdout, f"ended with status {process.returncode}: {process.stderr[-400:]}"
    except subprocess.TimeoutExpired as expired:
        output, end = (expired.stdout or b"").decode(), f"did not end within {timeout_s:.0f} s"
    results: dict[str, dict[str, Any]] = {name: {} for name in names}
    for line in output.splitlines():
        if line.startswith('{"name"'):
            result = json.loads(line)
            results[result.pop("name")][result.pop("stage")] = result
    ending = {"outcome": "hangs" if "within" in end else "died", "error": end}
    for stages in results.values():
        for result in stages.values():
            if result["outcome"] == "begun":
                result.update(ending)
        if not stages:
            stages["imports"] = ending
    return results


def worked(stages: dict[str, Any]) -> bool:
    """Return whether every stage that began worked."""
    return bool(stages) and all(stage["outcome"] == "works" for stage in stages.values())


def verdict(stages: dict[str, Any]) -> str:
    """Return "yes", "no", or "refused" if gpulab itself says that it does not support the program."""
    outcomes = {stage["outcome"] for stage in stages.values()}
    return "yes" if worked(stages) else "refused" if outcomes <= {"works", "refused"} else "no"


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """Return the table as lines: one row per name, then the totals."""
    lines = [f"{'name':40} {'before':8} {'inside':8} {'trains':8} {'generates':10} first error"]
    for name, by_when in results.items():
        columns = ["" if when not in by_when else verdict(by_when[when]) for when in WHEN]
        for stage in ("trains", "generates"):
            outcomes = [stages.get(stage, {}).get("outcome") for stages in by_when.values()]
            columns.append("yes" if set(outcomes) == {"works"} else "" if not any(outcomes) else "no")
        lines.append(f"{name:40} {columns[0]:8} {columns[1]:8} {columns[2]:8} {columns[3]:10} {first_error(by_when)}")
    totals = [sum(worked(by_when.get(when, {})) for by_when in results.values()) for when in WHEN]
    return [*lines, f"{len(results)} in all: {totals[0]} work imported before, {totals[1]} imported inside"]


def first_error(by_when: dict[str, Any]) -> str:
    """Return the first error of a name with its stage and line; empty if it works."""
    for when in reversed(WHEN):
        for stage, result in by_when.get(when, {}).items():
            if result["outcome"] != "works":
                text = " ".join(result.get("error", "").split())[:110]
                return f"{when}, {stage}, {result.get('line', '')} {result['outcome']}: {text}"
    return ""


def versions() -> dict[str, str]:
    """Return the versions of the packages that are installed."""
    installed = {}
    for package in PACKAGES:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


if __name__ == "__main__":
    main()
