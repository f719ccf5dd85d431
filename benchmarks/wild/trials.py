"""Tries the printed fixes of gpulab on the loops: `python -m benchmarks.wild.trials RESULTS.json [--loop NAME ...]`.

Each loop is profiled in a process of its own; then `try_fix` runs its cell with and without its first fix that is code,
as `%gpufix` does. With `--all`, `try_all_fixes` tries all of them, as `%gpufix --all` does; a row is about the fastest.
A row says what the trial measured and what was predicted, or why there was no trial. All rows are written to
RESULTS.json, from which a later call continues. Each trial is also checked: afterwards, the variables of the cell must
be the same objects, and parameters must have the same values.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.wild.loop import WARM_SCALE, Namespace, cell_source, prepared_cell
from benchmarks.wild.outcome import run_once
from benchmarks.wild.registry import load_loop, matching_names

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900

Row = dict[str, Any]


def tried(name: str, seconds: float, repeats: int, with_all: bool) -> Row:
    """Profile a loop in this process, and try the fix of its first finding with code, or all fixes."""
    import gpulab
    from gpulab.errors import GpulabError
    from gpulab.questions import diagnose

    loop = load_loop(name)
    if loop.warm:
        run_once(loop, None, WARM_SCALE)
    with prepared_cell(loop) as (code, namespace):
        with gpulab.profile(name):
            exec(code, namespace)
        before = snapshot(namespace)
        row: Row = {"loop": name, "rule": "", "reason": ""}
        diagnosis, source = diagnose(gpulab.runs[name]), cell_source(loop)
        row["first"] = diagnosis.first.rule if diagnosis.first else ""
        try:
            tries = all_fixes if with_all else first_fix
            row |= tries(diagnosis, source, namespace, seconds, repeats)
        except GpulabError as error:
            row["reason"] = f"{error.problem} {error.why}"
        row["changed"] = [key for key, value in snapshot(namespace).items() if not same(before.get(key), value)]
        row["changed"] += sorted(set(before) - set(namespace))
    return row


def first_fix(diagnosis: Any, source: str, namespace: Namespace, seconds: float, repeats: int) -> Row:
    """Try the fix of the first finding with code."""
    from gpulab.trial.fix_trial import finding_to_try, try_fix

    finding = finding_to_try(diagnosis)
    return {
        "rule": finding.rule,
        **measured(finding, try_fix(finding, source, namespace, seconds=seconds, repeats=repeats).comparison),
    }


def all_fixes(diagnosis: Any, source: str, namespace: Namespace, seconds: float, repeats: int) -> Row:
    """Try all fixes; the row is about the fastest, and has the others as `fixes`."""
    from gpulab.trial.all_fixes import try_all_fixes

    trials = try_all_fixes(diagnosis, source, namespace, seconds=seconds, repeats=repeats)
    together = [trials.together] if trials.together else []
    fixes = [
        {
            "rule": fix.finding.label,
            "reason": f"{fix.error.problem} {fix.error.why}" if fix.error else "",
            "helps": fix.helps,
        }
        | (measured(fix.finding, fix.comparison) if fix.comparison else {})
        for fix in (*trials.fixes, *together)
    ]
    return {**fixes[0], "fixes": fixes}


def measured(finding: Any, compared: Any) -> Row:
    """What was measured and predicted, as plain values."""
    gain = finding.gain
    return {
        "measured": [compared.ratio, compared.ratio_low, compared.ratio_high],
        "predicted": None if gain is None else [gain.worst_speedup, gain.best_speedup, gain.bound],
        "inside": compared.in_predicted_range,
    }


def snapshot(namespace: Namespace) -> dict[str, tuple[int, Any]]:
    """The identity of each variable, and copies of the parameters of models."""
    return {
        name: (id(value), [p.detach().clone() for p in value.parameters()])
        if isinstance(value, torch.nn.Module)
        else (id(value), None)
        for name, value in namespace.items()
        if name != "__builtins__"
    }


def same(before: tuple[int, Any] | None, after: tuple[int, Any]) -> bool:
    """Whether a variable is the same object with the same parameters."""
    if before is None or before[0] != after[0]:
        return False
    return before[1] is None or all(torch.equal(one, other) for one, other in zip(before[1], after[1], strict=True))


def tried_in_child(name: str, seconds: float, repeats: int, with_all: bool) -> Row:
    """Try a loop in a process of its own."""
    options = ["--one", name, "--seconds", str(seconds), "--repeats", str(repeats), *["--all"] * with_all]
    command = [sys.executable, "-m", "benchmarks.wild.trials", *options]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"loop": name, "rule": "", "reason": f"no end after {TIMEOUT_S} s", "failed": True}
    if done.returncode != 0:
        return {"loop": name, "rule": "", "reason": done.stderr[-1500:], "failed": True}
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def line(row: Row) -> str:
    """A row of the table."""
    if "measured" not in row:
        return f"| {row['loop']} | {row['rule'] or 'none'} | - | - | {row['reason'].splitlines()[-1]} |"
    predicted = row["predicted"]
    span = f"{predicted[0]:.2f}-{predicted[1]:.2f}x" if predicted else "-"
    inside = {True: "inside", False: "outside", None: ""}[row["inside"]]
    return f"| {row['loop']} | {row['rule']} | {span} | {row['measured'][0]:.2f}x | {inside} |"


def main() -> None:
    """Try the loops that are named, or all, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--loop", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--all", action="store_true", help="try the fixes of all findings")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        row = tried(options.one, options.seconds, options.repeats, options.all)
        sys.stdout.write("\n" + json.dumps(row) + "\n")
        return
    rows = json.loads(options.results.read_text()) if options.results and options.results.exists() else {}
    for name in matching_names(options.loop):
        if name not in rows:
            rows[name] = tried_in_child(name, options.seconds, options.repeats, options.all)
            if options.results:
                options.results.write_text(json.dumps(rows, indent=1))
            sys.stdout.write(line(rows[name]) + "\n")
            sys.stdout.flush()
    tries = [row for row in rows.values() if "measured" in row]
    sys.stdout.write(
        f"\n{len(tries)} trials of {len(rows)} loops; inside the range: {sum(bool(row['inside']) for row in tries)} of "
        f"{sum(row['inside'] is not None for row in tries)}; slower by more than 5 %: "
        f"{sum(row['measured'][2] < 0.95 for row in tries)}; variables changed: "
        f"{sum(bool(row.get('changed')) for row in rows.values())}; failed: "
        f"{sum(bool(row.get('failed')) for row in rows.values())}\n"
    )


if __name__ == "__main__":
    main()
