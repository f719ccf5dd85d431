"""python -m benchmarks.ranks [--repeats 3]: predict changes of a job of live ranks, make them, and compare.

Each job is recorded once, then run without gpulab before and after the change, in turn. Prints a row per experiment:
the predicted speed-up with its range and bound, and the measured one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import gpulab
from gpulab.errors import RunError
from gpulab.replay.job.job_prediction import JobPrediction
from gpulab.views.whatif.job import JobWhatIf

PROGRAM = Path(__file__).with_name("program.py")
RECORDINGS = 3
TIMEOUT_S = 300


@dataclass(frozen=True)
class Experiment:
    """A job with a planted delay, the change that is predicted, and the arguments of the changed job."""

    name: str
    ranks: int
    change: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    ranks_after: int | None = None  # None: as many as before


ONE, ROTATING = ("--late", "one", "--delay-ms", "20"), ("--late", "rotating", "--delay-ms", "30")
RANDOM = ("--late", "random", "--delay-ms", "120", "--width", "16")
SHARED_BY_TWO, WIDE = ("--late", "all", "--delay-ms", "15"), ("--width", "1024")
EXPERIMENTS = (
    Experiment("one slow rank of two", 2, "no_straggler", ONE, ()),
    Experiment("one slow rank of two", 2, "no_sync=4", ONE, (*ONE, "--accumulate", "4")),
    Experiment("two ranks slow in turn", 2, "balance", ROTATING, SHARED_BY_TWO),
    Experiment("two ranks slow in turn", 2, "no_sync=4", ROTATING, (*ROTATING, "--accumulate", "4")),
    Experiment("two equal ranks, 34 MB of gradients", 2, "no_sync=4", WIDE, (*WIDE, "--accumulate", "4")),
    Experiment("one slow rank of four", 4, "no_straggler", ONE, ()),
    Experiment("one slow rank of four", 4, "no_sync=4", ONE, (*ONE, "--accumulate", "4")),
    Experiment("two ranks that sleep for 84 to 156 ms", 2, "ranks=4", RANDOM, RANDOM, 4),
    Experiment("two ranks that sleep for 84 to 156 ms", 2, "ranks=8", RANDOM, RANDOM, 8),
)


def launch(ranks: int, *command: str | Path) -> str:
    """Run a program as this many ranks; return what rank 0 prints."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks))
    result = subprocess.run(
        [*launcher, *map(str, command)], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    return result.stdout


def predict(experiment: Experiment) -> JobPrediction | None:
    """Record the job, and predict the change; None if the replay refuses three recordings."""
    for _ in range(RECORDINGS):
        try:
            return _predict_once(experiment)
        except RunError as refusal:
            print(f"{experiment.name}: {refusal.why}", file=sys.stderr)
    return None


def _predict_once(experiment: Experiment) -> JobPrediction:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "job"
        launch(experiment.ranks, "-m", "gpulab", "run", "--quiet", "--out", out, PROGRAM, *experiment.before)
        view = gpulab.whatif(gpulab.load(out, progress=False), experiment.change)
    assert isinstance(view, JobWhatIf)
    return view.prediction


def measure(experiment: Experiment, repeats: int) -> float:
    """Return the measured speed-up: the median over pairs of runs before and after the change.

    With more ranks, it is that of the samples per second: each rank has as many as before.
    """
    ranks_after = experiment.ranks_after or experiment.ranks
    ratios = []
    for _ in range(repeats):
        before_ms = float(launch(experiment.ranks, PROGRAM, *experiment.before))
        after_ms = float(launch(ranks_after, PROGRAM, *experiment.after))
        ratios.append(before_ms / after_ms * ranks_after / experiment.ranks)
    return median(ratios)


def main() -> None:
    """Run all experiments and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--change", default="", help="only changes that begin like this")
    given = parser.parse_args()
    repeats, experiments = given.repeats, [each for each in EXPERIMENTS if each.change.startswith(given.change)]
    inside = below_bound = 0
    print("| job | change | predicted | range | bound | measured |\n|---|---|---|---|---|---|")
    for experiment in experiments:
        prediction = predict(experiment)
        measured = measure(experiment, repeats)
        if prediction is None:
            print(f"| {experiment.name} | `{experiment.change}` | refused | - | - | {measured:.2f}x |", flush=True)
            continue
        worst, best = prediction.worst_speedup, prediction.best_speedup
        inside += worst <= measured <= best
        below_bound += measured <= prediction.bound
        numbers = f"{prediction.speedup:.2f}x | {worst:.2f}-{best:.2f}x | {prediction.bound:.2f}x | {measured:.2f}x"
        print(f"| {experiment.name} | `{experiment.change}` | {numbers} |", flush=True)
    print(f"{inside} of {len(experiments)} in the range, {below_bound} below the bound")


if __name__ == "__main__":
    main()
