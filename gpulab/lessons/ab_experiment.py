"""Two variants of a loop, run in turn in this process, and compared: before, after, before, after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpulab.capture.seeds import begin_anew, chance_kept, settled
from gpulab.capture.session import Session
from gpulab.comparison import Comparison
from gpulab.errors import CaptureError
from gpulab.lessons.equality import Equality, equality
from gpulab.questions import compare
from gpulab.rules import Gain
from gpulab.run import Run
from gpulab.views.compare.comparison import told
from gpulab.views.sheet.sheet import Facts, Sheet
from gpulab.views.sheet.view import View

Variant = Callable[[], Any]
SHELF = "experiment."  # the last recording of each variant is gpulab.runs["experiment.before"] and so on


@dataclass(frozen=True, eq=False, repr=False)
class Experiment(View):
    """What an experiment shows: end a cell with it, print it, or `save` it."""

    comparison: Comparison
    before: tuple[Run, ...]
    after: tuple[Run, ...]
    order: tuple[str, ...]  # the names of the runs, as they were recorded
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
    """Run two variants of a training loop in turn, each `repeats` times, and compare them.

    Each is a function without arguments that trains from scratch, model and data included, and returns what shows
    that both do the same: the losses, an output, a state_dict; None is not checked. Both run once first, unrecorded:
    they warm up, and their results must be equal within what their types allow. `equal`: a share of the largest value
    to allow instead, or False where they are meant to differ. The same `seed` goes before each run, and random numbers
    go on afterwards as if nothing had been drawn. `level="sensors"` leaves the profiler out and times alone.
    `rewrites`: what `after` changes, as gpulab.whatif takes it: what that predicts from the first recording of `before`
    is held against the measurement.

    Taking turns, both see the same machine: what else it does, and how warm it is, falls on both alike. The last
    recording of each is kept as gpulab.runs["experiment.before"] and ["experiment.after"], all of them are in the
    value's `before` and `after`. An exception in a variant goes on its way, and nothing of its run is kept.
    Raises RunError where the results differ, CaptureError where recording cannot start.
    """
    if repeats < 1:
        raise CaptureError(
            f"An experiment of {repeats} repeats shows nothing.",
            why="each variant must be recorded at least once, and several times to tell a difference from chance",
            fix="leave repeats out for five",
        )
    with chance_kept():
        # The results may hold a model's memory, which is not to be there while the runs are recorded: they get no name.
        seen = equality(_quietly(before, seed), _quietly(after, seed), equal)
        runs = _in_turn(before, after, repeats, lambda variant, name: _recorded(variant, name, level, steps, seed))
    sides, order = (runs[::2], runs[1::2]), [run.name for run in runs]
    one, other = (each if repeats > 1 else each[0] for each in sides)
    compared = compare(one, other, rule, predicted=predicted, rewrites=rewrites)
    facts = Facts((("equal results", seen.words), ("order", ", ".join(order)), ("seed", f"{seed} before each run")))
    return Experiment(
        Sheet("gpulab: an experiment", told(compared, (facts,))),
        comparison=compared,
        before=tuple(sides[0]),
        after=tuple(sides[1]),
        order=tuple(order),
        equality=seen,
    )


def _in_turn(before: Variant, after: Variant, repeats: int, record: Callable[[Variant, str], Run]) -> list[Run]:
    """The runs of both, one of each after the other."""
    return [
        replace(record(variant, SHELF + side), name=f"{side} {number}" if repeats > 1 else side)
        for number in range(1, repeats + 1)
        for side, variant in (("before", before), ("after", after))
    ]


def _quietly(variant: Variant, number: int) -> Any:
    begin_anew(number)
    result = variant()
    settled()
    return result


def _recorded(variant: Variant, name: str, level: str, steps: int | None, number: int) -> Run:
    """One run of a variant; where it fails, no run."""
    begin_anew(number)
    session = Session(name, level=level, steps=steps)
    session.start()
    try:
        variant()
        settled()
    except BaseException:
        session.abandon()
        raise
    return session.stop()
