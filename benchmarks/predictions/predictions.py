"""Do predictions hold? Each of some thirty changes is predicted from the original loop, then applied and measured.

    python benchmarks/predictions/predictions.py [--repeats 3] [--pairs NAME ...] [--json FILE] [--keep FOLDER]
    python benchmarks/predictions/predictions.py --from FOLDER       evaluate recorded runs again, without recording

Both variants run alternately, each in a fresh process under `gpulab.profile`. The measured value is the median
un-profiled step, the median over the repeats; each run of the original loop alone gives one prediction. If the change
makes items cheaper, the factor comes from timing batches alone, without a model, as a user would with `%timeit`. The
error of a saving is its distance from the measured one, as a share of that; if the number of samples per step changes,
savings are per sample. benchmarks/predictions/pairs.py lists the loops, and which of them were held out.

Waits for a GPU need a GPU: that kind is left to machines that have one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

import gpulab  # noqa: E402
from benchmarks.predictions.pairs import PAIRS, Pair  # noqa: E402
from gpulab.analysis.host.other_programs import cores_used_by_others  # noqa: E402
from gpulab.analysis.steps.detection import find_steps  # noqa: E402
from gpulab.analysis.steps.ledger import build_ledger  # noqa: E402
from gpulab.errors import RunError  # noqa: E402
from gpulab.replay.parsing import parse_changes  # noqa: E402
from gpulab.replay.prediction import Prediction, build_replay_model, predict  # noqa: E402
from gpulab.replay.sweep import burst_median  # noqa: E402
from gpulab.run import Run  # noqa: E402

WANTED_INSIDE, WANTED_ERROR = 0.80, 0.15
LITTLE = 0.03  # of a step: a saving as small as this is within the noise, and its error says nothing


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One prediction, as fractions of the original step."""

    best: float
    likely: float
    worst: float
    floor: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A pair: the predictions from each original run, and the measured results."""

    name: str
    kind: str
    spec: str
    about: str
    held_out: bool
    work: int
    before_ms: tuple[float, ...]
    after_ms: tuple[float, ...]
    asked: tuple[Asked, ...]
    refused: str | None = None
    why: str = ""  # what of the step did not go as predicted

    @property
    def ratio(self) -> float:
        """Return the step time after the change over the one before."""
        return median(self.after_ms) / median(self.before_ms)

    @property
    def inside(self) -> int:
        """Return how many of the predicted ranges contain it."""
        return sum(each.best <= self.ratio <= each.worst for each in self.asked)

    @property
    def saving(self) -> float:
        """Return the measured saving as a fraction of a step, for the same samples; negative if slower."""
        return 1 - self.ratio / self.work

    @property
    def error(self) -> float | None:
        """By how much the predicted saving was off, the median; None where there was next to none to predict."""
        if not self.asked or abs(self.saving) < LITTLE:
            return None
        return median(abs((1 - each.likely / self.work) / self.saving - 1) for each in self.asked)


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Accuracy of the predictions for some pairs."""

    pairs: int
    kinds: int
    asked: int
    inside_frac: float
    error: float | None
    refused: int


def tally(outcomes: Sequence[Outcome]) -> Tally:
    """Return the share of predictions whose range contained the measured value, and the median error of the savings."""
    count = sum(len(each.asked) for each in outcomes)
    errors = [each.error for each in outcomes if each.error is not None]
    return Tally(
        pairs=len(outcomes),
        kinds=len({each.kind for each in outcomes}),
        asked=count,
        inside_frac=sum(each.inside for each in outcomes) / count if count else 0.0,
        error=median(errors) if errors else None,
        refused=sum(each.refused is not None for each in outcomes),
    )


def main() -> None:
    """Record the pairs if needed, predict, write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pairs", nargs="*", help="by name, or by kind; all unless given")
    parser.add_argument("--json", type=Path, help="write what was predicted and measured to this file as well")
    parser.add_argument("--keep", type=Path, help="where recorded runs are kept; nowhere unless given")
    parser.add_argument("--from", dest="source", type=Path, help="ask the runs in this folder; record none")
    arguments = parser.parse_args()
    FRESH.set_forkserver_preload(IMPORTED)
    began, outcomes = time.monotonic(), []
    pairs = [pair for pair in PAIRS if not arguments.pairs or {pair.name, pair.kind} & set(arguments.pairs)]
    _log(HEAD)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.source or arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for pair in pairs:
            if arguments.source is None:
                _record_all(pair, folder, arguments.repeats)
            if list(folder.glob(f"{pair.name}.*.after.gpulab")):
                outcomes.append(judged(pair, folder))
                _log(row(outcomes[-1]))
    _log(summary(outcomes, time.monotonic() - began))
    if arguments.json:
        arguments.json.write_text(json.dumps([_as_data(each) for each in outcomes], indent=1) + "\n")


def _record_all(pair: Pair, folder: Path, repeats: int) -> None:
    """Before, after, before, after ..., each in a process of its own."""
    files = [folder / f"{pair.name}.{repeat}.{side}.gpulab" for repeat in range(repeats) for side in SIDES]
    jobs = [(file.name.split(".")[-2], file) for file in files]
    if pair.alone:
        jobs.insert(0, ("alone", folder / f"{pair.name}.factor"))
    for side, file in jobs:
        file.unlink(missing_ok=True)
        process = FRESH.Process(target=_record, args=(pair.name, side, str(file)))
        process.start()
        process.join()
        if process.exitcode:
            sys.stderr.write(f"{pair.name} {side} failed\n")


SIDES = ("before", "after")
# Every run is forked from a process that has imported PyTorch and run nothing of it: as good as new, without the
# three seconds that importing takes.
FRESH = multiprocessing.get_context("forkserver")
IMPORTED = [
    "torch",
    "torch._dynamo",
    "torch.profiler",
    "torch.utils.data",
    "gpulab.capture",
    "benchmarks.predictions.pairs",
]


def _record(name: str, side: str, file: str) -> None:
    """Profile one side in this process and save the run, or time the batches of both without a model."""
    # Workers start as they do in anybody's script, not from the process that this one was forked from.
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
    pair = next(each for each in PAIRS if each.name == name)
    if side == "alone":
        assert pair.alone, f"{name} has no batches to time alone"
        before, after = (median(_batch_s(make()) for _ in range(2)) for make in pair.alone)
        Path(file).write_text(f"{after / before:.3f}")
        return
    warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)  # where items wait, it is right
    with gpulab.profile(name):
        (pair.before if side == "before" else pair.after)()
    gpulab.save(gpulab.runs[name], file)


def _batch_s(batches: Iterable[object]) -> float:
    """Return the median time per batch."""
    took, began = [], time.perf_counter()
    for _ in batches:
        took.append(time.perf_counter() - began)
        began = time.perf_counter()
    return median(took[2:])


def judged(pair: Pair, folder: Path) -> Outcome:
    """Ask every recorded run of the loop before, and compare with those after."""
    files = {side: sorted(folder.glob(f"{pair.name}.*.{side}.gpulab")) for side in SIDES}
    before, after = ([gpulab.load(file) for file in files[side]] for side in SIDES)
    spec = pair.spec
    if pair.alone:
        spec = spec.format(f=(folder / f"{pair.name}.factor").read_text())
    refused, predictions = None, []
    for run in before:
        try:
            predictions.append(_predicted(run, spec))
        except RunError as error:
            refused = str(error)
    return Outcome(
        name=pair.name,
        kind=pair.kind,
        spec=spec,
        about=pair.about,
        held_out=pair.held_out,
        work=pair.work,
        before_ms=tuple(_plain_ms(run) for run in before),
        after_ms=tuple(_plain_ms(run) for run in after),
        asked=tuple(_as_fractions(each) for each in predictions),
        refused=refused,
        why=_why(predictions[0], before, after) if predictions else "",
    )


def _predicted(run: Run, spec: str) -> Prediction:
    run_steps = find_steps(run)
    accounts = build_ledger(run, run_steps)
    assert accounts is not None, "every pair is recorded with events"
    return predict(build_replay_model(run, run_steps, accounts), parse_changes(spec))


def _as_fractions(prediction: Prediction) -> Asked:
    return Asked(
        best=prediction.best_ns / prediction.step_ns,
        likely=prediction.likely_ns / prediction.step_ns,
        worst=prediction.worst_ns / prediction.step_ns,
        floor=prediction.floor_ns / prediction.step_ns,
    )


def _plain_ms(run: Run) -> float:
    return (find_steps(run).step_ns or 0) / 1e6


def _why(prediction: Prediction, before: Sequence[Run], after: Sequence[Run]) -> str:
    """The part of the step that went least as predicted, and whether other programs took the cores."""
    graph = prediction.schedule.graph
    differences: dict[str, tuple[float, float]] = {}
    for part, ns in graph.host.before_ns.items():
        done = np.cumsum(ns)
        predicted = burst_median(done[graph.step_end_node] - done[graph.step_start_node], graph.steps.burst)
        measured = median(_part_ns(run, part) for run in after)
        differences[part] = predicted / 1e6, measured / 1e6
    part, (predicted, measured) = max(differences.items(), key=lambda each: abs(each[1][0] - each[1][1]))
    label = graph.ledger.label(part) if part in graph.ledger.part_ns else part
    explanation = f"{label}: {predicted:.1f} ms predicted, {measured:.1f} came"
    if prediction.limit:
        explanation += f"; {prediction.limit} were to limit"
    crowds = [median(_others(run) for run in runs) for runs in (before, after)]
    if max(crowds) > 0.2:
        explanation += f"; other programs used {crowds[0]:.1f} cores before and {crowds[1]:.1f} after"
    return explanation


def _others(run: Run) -> float:
    run_steps = find_steps(run)
    return cores_used_by_others(run, run_steps, run_steps.unprofiled | run_steps.interior) or 0.0


def _part_ns(run: Run, part: str) -> float:
    """A part of a typical step, without what recording added: calls take that, and little else does."""
    run_steps = find_steps(run)
    accounts = build_ledger(run, run_steps)
    if accounts is None or part not in accounts.part_ns:
        return 0.0
    return accounts.median_ns(part) / (run_steps.profiler_overhead or 1.0)


HEAD = (
    f"{'':18} {'kind':26} {'before':>9}  {'predicted (range, bound)':30} {'measured':>14}  inside  error\n"
    f"{'':18} {'what-if':26} {'ms':>9}  {'step after, of the one before':30}"
)


def row(outcome: Outcome) -> str:
    """Return two lines for a pair, three if its prediction missed."""
    spread = (max(outcome.after_ms) - min(outcome.after_ms)) / 2 / median(outcome.before_ms)
    name = outcome.name + ("*" if outcome.held_out else "")
    start = f"{name:18.25} {outcome.kind:26.26} {median(outcome.before_ms):>9.2f}"
    if not outcome.asked:
        return f"{start}  {'not predicted':30} {outcome.ratio:>8.3f} ±{spread:.2f}\n{'':18} {outcome.refused}"
    mean = {key: median(asdict(each)[key] for each in outcome.asked) for key in ("likely", "best", "worst", "floor")}
    prediction_cell = f"{mean['likely']:.3f} ({mean['best']:.3f}-{mean['worst']:.3f}, {mean['floor']:.3f})"
    error = f"{100 * outcome.error:.0f} %" if outcome.error is not None else "-"
    result_cell = f"{outcome.ratio:>8.3f} ±{spread:.2f}  {outcome.inside} of {len(outcome.asked)}  {error:>5}"
    line = f"{start}  {prediction_cell:30} {result_cell}\n{'':18} {outcome.spec}: {outcome.about}"
    missed = 2 * outcome.inside < len(outcome.asked) or (outcome.error or 0.0) > WANTED_ERROR
    return f"{line}\n{'':18} {outcome.why}" if missed else line


def summary(outcomes: Sequence[Outcome], took_s: float) -> str:
    """How often the ranges held, how far the savings were off: of all, of those held out, and of each kind."""
    groups = {"all": list(outcomes), "held out (*)": [each for each in outcomes if each.held_out]}
    groups["seen before"] = [each for each in outcomes if not each.held_out]
    for each in outcomes:
        groups.setdefault(each.kind, []).append(each)
    lines = ["", f"{'':38} pairs  inside the range  median error of the saving"]
    for name, some in groups.items():
        if some:
            result = tally(some)
            error = f"{100 * result.error:.0f} %" if result.error is not None else "-"
            refused = f"  ({result.refused} refused)" if result.refused else ""
            lines.append(f"{name:38} {result.pairs:>5}  {100 * result.inside_frac:>14.0f} %  {error:>26}{refused}")
    target_line = (
        f"wanted: {100 * WANTED_INSIDE:.0f} % inside, {100 * WANTED_ERROR:.0f} % error; took {took_s / 60:.1f} min"
    )
    return "\n".join([*lines, target_line])


def _as_data(outcome: Outcome) -> dict[str, object]:
    return {
        **asdict(outcome),
        "ratio": outcome.ratio,
        "inside": outcome.inside,
        "saving": outcome.saving,
        "error": outcome.error,
    }


def _log(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
