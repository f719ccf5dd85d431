"""Asks gpulab about each loop, and compares with the clock: `python -m benchmarks.wild.diagnose MEASURED.json RUNS`.

Each unchanged cell runs once under `gpulab.profile`, in a process of its own, at the size that was measured: what
happens once per epoch takes a larger share of a smaller loop. Its run is kept in the folder RUNS, and read from there
the next time. A first finding is right if one of the changes that it stands for is as fast as the
fastest one within 5 %; "no finding" is right if no change is above 1.1x. A predicted range is compared with the fastest
measured change that the finding stands for.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.wild.answers import answer
from benchmarks.wild.loop import WARM_SCALE, prepared_cell
from benchmarks.wild.outcome import run_once
from benchmarks.wild.registry import load_loop, matching_names
from benchmarks.wild.verdict import AS_FAST, GAIN, LARGER_BATCH, ChangeResult, LoopResult

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900
NOISE = 0.05  # of a measured ratio: a gain this far outside the range, or above the bound, is not counted as such


@dataclasses.dataclass(frozen=True)
class Judged:
    """What gpulab said about a loop, and what the clock says."""

    loop: str
    best: str  # the kind of the fastest change and its ratio, "nothing" without one
    rule: str  # of the first finding, "" without one
    confidence: str
    predicted: tuple[float, float, float] | None  # lower and upper end of the speed-up, and its bound
    measured: float | None  # the speed-up of the fastest change that the finding stands for
    right: bool
    right_without_batch: bool  # a larger batch is no answer

    @property
    def inside(self) -> bool | None:
        """Whether the measured speed-up lies in the predicted range; None if one of them is missing."""
        if self.predicted is None or self.measured is None:
            return None
        low, high, _ = self.predicted
        return low * (1 - NOISE) <= self.measured <= high * (1 + NOISE)

    @property
    def above_bound(self) -> bool:
        """Whether the measured speed-up is above the predicted bound."""
        return bool(self.predicted and self.measured and self.measured > self.predicted[2] * (1 + NOISE))

    @property
    def harms(self) -> bool:
        """Whether the change that the finding stands for makes the loop slower."""
        return self.measured is not None and self.measured < 1 - NOISE


def record(name: str, path: Path, scale: float) -> None:
    """Profile the unchanged cell in this process, at this fraction of its full size, and save the run."""
    import gpulab

    loop = load_loop(name)
    if loop.warm:
        run_once(loop, None, WARM_SCALE)
    with prepared_cell(loop, scale=scale) as (code, namespace), gpulab.profile(name):
        exec(code, namespace)
    gpulab.save(gpulab.runs[name], path)


def record_in_child(name: str, path: Path, scale: float) -> str:
    """Profile the cell in a process of its own; returns what went wrong, "" if nothing did."""
    module = ["-m", "benchmarks.wild.diagnose"]
    command = [sys.executable, *module, "--record", name, str(path), "--scale", str(scale)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no end after {TIMEOUT_S} s"
    return "" if done.returncode == 0 else done.stderr[-1000:]


def fastest(changes: Iterable[ChangeResult]) -> ChangeResult | None:
    """The change with the largest ratio among those surely above `GAIN`."""
    return max((change for change in changes if change["low"] > GAIN), key=lambda change: change["ratio"], default=None)


def is_right(kinds: frozenset[str], changes: Iterable[ChangeResult]) -> bool:
    """Whether a finding that stands for these kinds names the fastest change, or rightly none."""
    candidates = list(changes)
    best = fastest(candidates)
    if best is None:
        return not kinds
    return any(change["ratio"] >= AS_FAST * best["ratio"] for change in candidates if change["kind"] in kinds)


def judge(name: str, path: Path, result: LoopResult) -> Judged:
    """Compare the diagnosis of a run with what was measured."""
    import gpulab
    from gpulab.rules import diagnose

    first = diagnose(gpulab.load(path)).first
    changes = list(result["changes"].values())
    kinds = answer(first.rule) if first else frozenset()
    best = fastest(changes)
    gain = first.gain if first else None
    same_kind = [change["ratio"] for change in changes if change["kind"] in kinds - {LARGER_BATCH}]
    return Judged(
        loop=name,
        best=f"{best['kind']} {best['ratio']:.2f}x" if best else "nothing",
        rule=first.rule if first else "",
        confidence=first.confidence if first else "",
        predicted=None if gain is None else (gain.worst_speedup, gain.best_speedup, gain.bound),
        measured=max(same_kind, default=None),
        right=is_right(kinds, changes),
        right_without_batch=is_right(
            kinds - {LARGER_BATCH}, [change for change in changes if change["kind"] != LARGER_BATCH]
        ),
    )


def table(verdicts: Iterable[Judged]) -> str:
    """The verdicts as a table, and their counts."""
    lines = ["| loop | fastest change | first finding | confidence | predicted | measured | right | without batch |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    rows = list(verdicts)
    for row in rows:
        predicted = f"{row.predicted[0]:.2f}-{row.predicted[1]:.2f}x" if row.predicted else "-"
        measured = "-" if row.measured is None else f"{row.measured:.2f}x{'' if row.inside else ' outside'}"
        marks = ("yes" if value else "no" for value in (row.right, row.right_without_batch))
        cells = (row.loop, row.best, row.rule or "none", row.confidence, predicted, measured, *marks)
        lines.append(f"| {' | '.join(cells)} |")
    known = [row for row in rows if row.inside is not None]
    sure = [row for row in rows if row.confidence == "certain"]
    lines += [
        "",
        f"right: {sum(row.right for row in rows)} of {len(rows)}; without batch size as an answer: "
        f"{sum(row.right_without_batch for row in rows)} of {len(rows)}",
        f"high confidence and right: {sum(row.right_without_batch for row in sure)} of {len(sure)}",
        f"gain inside the range: {sum(bool(row.inside) for row in known)} of {len(known)}",
        f"the change makes the loop slower: {sum(row.harms for row in known)} of {len(known)}; "
        f"above the bound: {sum(row.above_bound for row in known)}",
    ]
    return "\n".join(lines) + "\n"


def judge_all(measured: Mapping[str, LoopResult], folder: Path) -> Iterable[Judged]:
    """Record the loops that have no run yet, and judge all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, result in measured.items():
        path = folder / f"{name.replace('/', '_')}.gpulab"
        problem = "" if path.exists() else record_in_child(name, path, result["scale"])
        if problem:
            sys.stderr.write(f"{name}: PROBLEM {problem}\n")
        else:
            yield judge(name, path, result)


def main() -> None:
    """Parse the arguments; record one loop, or judge all that were measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path, nargs="?", help="the file that benchmarks.wild.measure wrote")
    parser.add_argument("runs", type=Path, nargs="?", help="the folder with the recorded runs")
    parser.add_argument("--loop", action="append", default=[], help="a loop or a family; repeatable")
    parser.add_argument("--record", nargs=2, metavar=("LOOP", "FILE"), help=argparse.SUPPRESS)
    parser.add_argument("--scale", type=float, default=1.0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.record:
        record(arguments.record[0], Path(arguments.record[1]), arguments.scale)
        return
    if arguments.measured is None or arguments.runs is None:
        parser.error("the file with the measurements and a folder for the runs are needed")
    results: dict[str, LoopResult] = json.loads(arguments.measured.read_text())
    names = set(matching_names(arguments.loop))
    sys.stdout.write(
        table(judge_all({name: result for name, result in results.items() if name in names}, arguments.runs))
    )


if __name__ == "__main__":
    main()
