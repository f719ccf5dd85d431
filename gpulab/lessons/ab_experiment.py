"""Run two variants of a training loop alternately in this process, and compare them: before, after, before, after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpulab.capture.seeds import preserve_random_state, seed_everything, synchronize_gpus
from gpulab.capture.session import Session
from gpulab.comparison import Comparison
from gpulab.errors import CaptureError
from gpulab.lessons.equality import Equality, check_equality
from gpulab.questions import compare
from gpulab.rules import Gain
from gpulab.run import Run
from gpulab.views.compare.comparison import comparison_blocks
from gpulab.views.sheet.sheet import Facts, Sheet
from gpulab.views.sheet.view import View

Variant = Callable[[], Any]
RUN_PREFIX = "experiment."  # the last recording of each variant is gpulab.runs["experiment.before"] and so on


@dataclass(frozen=True, eq=False, repr=False)
class Experiment(View):
    """The result of an experiment: end a cell with it, print it, or `save` it."""

    comparison: Comparison
    before: tuple[Run, ...]
    after: tuple[Run, ...]
    order: tuple[str, ...]  # the names of the runs, in the order of recording
    equality: Equality


def experiment(
    before: Variant,
    after: Variant,
    *,
    repeats: int = 5,
    seed: int = 0,
    equal: bool | float = True,
    level: str = "trace",
    steps: int | None = None,
    rule: str | None = None,
    predicted: Gain | None = None,
    rewrites: str | None = None,
) -> Experiment:
    """Run two variants of a training loop alternately, each `repeats` times, and compare them.

    Each variant is a function without arguments that trains from scratch, including model and data, and returns a
    result that shows that both do the same: the losses, an output, a state_dict; None is not checked. Both run once
    unrecorded first: this is the warm-up, and their results must be equal within the precision of their data types.
    `equal`: a share of the largest value as another tolerance, or False if they are meant to differ. The same `seed` is
    set before each run, and the state of the random number generators is restored at the end. `level="sensors"` records
    without the profiler, and only measures times. `rewrites`: the change that `after` makes, as for gpulab.whatif; the
    report then compares the prediction from the first recording of `before` with the measurement.

    Variants alternate, so load and temperature of the machine affect both equally. The last recording of
    each is stored as gpulab.runs["experiment.before"] and ["experiment.after"]; all of them are in the `before` and
    `after` of the return value. An exception in a variant is propagated, and nothing of its run is stored.
    Raises RunError if the results differ, CaptureError if recording cannot start.
    """
    if repeats < 1:
        raise CaptureError(
            f"An experiment needs at least 1 repeat, but {repeats} repeats were requested.",
            why="each variant must be recorded at least once, and several times to tell a difference from noise",
            fix="leave out repeats to use the default of five",
        )
    with preserve_random_state():
        # The results may hold the memory of a model, which must be free during the recordings: store no reference.
        equal_results = check_equality(_run(before, seed), _run(after, seed), equal)
        runs = _alternate(before, after, repeats, lambda variant, name: _record(variant, name, level, steps, seed))
    sides, order = (runs[::2], runs[1::2]), tuple(run.name for run in runs)
    before_runs, after_runs = (side if repeats > 1 else side[0] for side in sides)
    comparison = compare(before_runs, after_runs, rule, predicted=predicted, rewrites=rewrites)
    rows = (("equal results", equal_results.description), ("order", ", ".join(order)), ("seed", str(seed)))
    return Experiment(
        Sheet("gpulab: an experiment", comparison_blocks(comparison, (Facts(rows),))),
        comparison=comparison,
        before=tuple(sides[0]),
        after=tuple(sides[1]),
        order=order,
        equality=equal_results,
    )


def _alternate(before: Variant, after: Variant, repeats: int, record: Callable[[Variant, str], Run]) -> list[Run]:
    """Record both variants alternately, and return the runs in this order."""
    return [
        replace(record(variant, RUN_PREFIX + side), name=f"{side} {number}" if repeats > 1 else side)
        for number in range(1, repeats + 1)
        for side, variant in (("before", before), ("after", after))
    ]


def _run(variant: Variant, seed: int) -> Any:
    seed_everything(seed)
    result = variant()
    synchronize_gpus()
    return result


def _record(variant: Variant, name: str, level: str, steps: int | None, seed: int) -> Run:
    """Record one run of a variant; if it raises an exception, store no run."""
    seed_everything(seed)
    session = Session(name, level=level, steps=steps)
    session.start()
    try:
        variant()
        synchronize_gpus()
    except BaseException:
        session.abandon()
        raise
    return session.stop()
