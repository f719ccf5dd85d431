"""What a step would be with something changed: a middle, a range and a bound, by replaying the changes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpulab.analysis.data.loader import feeding
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.errors import RunError
from gpulab.replay.batched_sweep import steps_ns
from gpulab.replay.graph.build import graph_of
from gpulab.replay.graph.calibration import UNKNOWN, Calibrated, calibrated, with_calling
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.history import NO_HISTORY, History
from gpulab.replay.quality import Quality, quality
from gpulab.replay.rewrite import GRADES, MIDDLE, Chosen, Draw
from gpulab.replay.sweep import Timed, swept
from gpulab.run import Run

FAVOURABLE = Draw(otherwise=0.0)  # every unknown at its best
SAMPLES = 100  # enough that the 10 % and 90 % points move by a few per cent of the range from one set to the next
LEAST_SAMPLES = 12
# On a CPU what is left of a step is faster alone, without cold caches and sleeping threads after each wait; or slower,
# where it shares memory with what was moved beside it: by so much of the share that was taken away.
WARMER = (0.65, -0.35)
NOISE_GPU, NOISE_CPU = 0.01, 0.06  # of a step: how much the same loop run again differs, on a machine with other users


@dataclass(frozen=True, eq=False)
class Scene:
    """A run made ready for what-ifs: its graph, calibrated, and how far that may be trusted."""

    base: Calibrated
    quality: Quality

    @property
    def graph(self) -> Graph:
        """The graph of the un-profiled step."""
        return self.base.graph

    @property
    def step_ns(self) -> int:
        """The step that predictions start from."""
        return self.graph.steps.step_ns or round(self.timed.step_ns)

    @cached_property
    def timed(self) -> Timed:
        """The step as it is, replayed."""
        return swept(self.graph)

    @cached_property
    def by_calling(self) -> tuple[Floats, Floats]:
        """The step as it is where calls cost this share of what was recorded: shares, and ns of a replay."""
        shares = np.linspace(*UNKNOWN, 5)
        return shares, np.array([swept(with_calling(self.graph, share)).step_ns for share in shares])

    def scaled_ns(self, replayed_ns: float, draw: Draw) -> float:
        """A step of a replay on the scale of the un-profiled step."""
        start_ns = self.timed.step_ns
        if not self.base.known:
            start_ns = float(np.interp(draw.between("calling", *UNKNOWN), *self.by_calling))
        return self.step_ns * replayed_ns / max(1.0, start_ns)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """The typical step with the rewrites made together: `floor_ns <= best_ns <= likely_ns <= worst_ns`."""

    scene: Scene
    chosen: tuple[Chosen, ...]
    step_ns: int  # as it is
    likely_ns: int
    best_ns: int  # 10 % of what is possible is better
    worst_ns: int  # and 10 % worse; it may be longer than the step is now
    floor_ns: int  # no way of doing this can be better
    grade: str  # the weakest of its rewrites
    samples: int  # draws of the unknowns that the range rests on
    limit: str | None  # what else than host and device limits: "the workers", "the cores"
    learned: int = 0  # earlier predictions of this kind that were measured on this machine
    work: float = 1.0  # by how much more a step then does: four times the batch is 4
    timed: Timed  # the middle of everything, replayed

    @property
    def run(self) -> Run:
        """The run it is about."""
        return self.scene.graph.run

    @property
    def speedup(self) -> float:
        """How much faster the same work is done: step time as it is over the likely one, times the work of a step."""
        return self.work * self.step_ns / self.likely_ns

    @property
    def bound(self) -> float:
        """The speed-up that nothing done this way can exceed."""
        return self.work * self.step_ns / self.floor_ns

    @property
    def floor_means(self) -> str:
        """What the bound assumes, as the subject of "gives at most"."""
        means = [each.rewrite.ceiling_means for each in self.chosen]
        return means[0] if len(means) == 1 else "even all of it at no cost"


def scene(run: Run, steps: Steps, ledger: Ledger) -> Scene:
    """Make a run ready for what-ifs; its quality says whether it may be asked."""
    graph = graph_of(run, steps, ledger)
    return Scene(calibrated(graph, feeding(run, steps, ledger)), quality(graph))


def untold(ready: Scene, chosen: Sequence[Chosen]) -> str | None:
    """Why these rewrites cannot be predicted from this run; None where they can."""
    if ready.quality.refusal is not None:
        return ready.quality.refusal
    graph = ready.graph
    for number, each in enumerate(chosen):
        why = each.rewrite.lacking(graph, each.value)
        if why is not None:
            return f"{each}: {why}" if len(chosen) > 1 else why
        if number + 1 < len(chosen):
            graph = each.rewrite.edit(graph, each.value, MIDDLE)  # on another GPU, another precision may be had
    return None


def predict(
    ready: Scene, chosen: Sequence[Chosen], *, samples: int = SAMPLES, history: History = NO_HISTORY
) -> Prediction:
    """Replay the run with these rewrites. Raises RunError where the replay is not to be trusted, or one cannot be told.

    The order of `chosen` does not matter: rewrites are made in the order of the catalogue.
    """
    _checked(ready, chosen)
    middle = swept(edited(ready, chosen, MIDDLE))
    likely_ns = warmed(ready, chosen, ready.scaled_ns(middle.step_ns, MIDDLE), MIDDLE)
    drawn = _drawn_ns(ready, chosen, draws_of(samples)) if chosen else [likely_ns]
    ceiling = edited(ready, (), FAVOURABLE)
    for each in chosen:
        ceiling = each.rewrite.ceiling(ceiling, each.value)
    floor_ns = warmed(ready, chosen, ready.scaled_ns(swept(ceiling).step_ns, FAVOURABLE), FAVOURABLE)
    low, high = np.percentile(drawn, (10, 90)) if len(drawn) > 2 else (min(drawn), max(drawn))
    grade = max((each.rewrite.grade for each in chosen), default="A")
    learned = history.of("+".join(sorted(each.rewrite.name for each in chosen)))
    likely_ns = max(likely_ns, floor_ns)
    best, worst = _range(ready, likely_ns, (float(low), float(high)), grade, learned.spread)
    own, limits = middle.own_ns, middle.graph.limits_ns
    limit = max(limits, key=lambda name: limits[name]) if limits and max(limits.values()) > own else None
    return Prediction(
        scene=ready,
        chosen=tuple(chosen),
        step_ns=ready.step_ns,
        likely_ns=max(1, round(likely_ns)),
        best_ns=max(1, round(min(max(best, floor_ns), likely_ns))),
        worst_ns=max(1, round(max(worst, likely_ns))),
        floor_ns=max(1, round(min(floor_ns, likely_ns))),
        grade=grade,
        samples=len(drawn),
        limit=limit,
        learned=learned.count,
        work=float(np.prod([each.rewrite.work(ready.graph, each.value) for each in chosen if each.rewrite.work])),
        timed=middle,
    )


def _checked(ready: Scene, chosen: Sequence[Chosen]) -> None:
    """Raise RunError where the replay is not to be trusted, or a rewrite cannot be told."""
    if ready.quality.refusal is not None:
        raise RunError("Nothing can be predicted from this run.", why=ready.quality.refusal, fix=ready.quality.fix)
    why = untold(ready, chosen)
    if why is not None:
        what = f"{', '.join(map(str, chosen))} cannot be predicted from this run."
        raise RunError(what, why=why, fix="leave it out, or record a run that has it")


def draws_of(samples: int) -> tuple[Draw, ...]:
    """So many draws of the unknowns; of fewer than a dozen the ends would be chance, so then it is the ends alone."""
    if samples < LEAST_SAMPLES:
        return Draw(otherwise=0.1), Draw(otherwise=0.9)
    return tuple(Draw(seed=number) for number in range(samples))


def edited(ready: Scene, chosen: Sequence[Chosen], draw: Draw) -> Graph:
    """The graph with the rewrites made, in the order given."""
    graph = ready.graph
    if not ready.base.known:
        graph = with_calling(graph, draw.between("calling", *UNKNOWN))
    for each in chosen:
        graph = each.rewrite.edit(graph, each.value, draw)
    return graph


def warmed(ready: Scene, chosen: Sequence[Chosen], left_ns: float, draw: Draw) -> float:
    """On a CPU, what is left of a step may be faster alone: no cold caches and sleeping threads after each wait."""
    calmer = any(each.rewrite.calms for each in chosen)
    if ready.graph.on_gpu or left_ns >= ready.step_ns or not calmer:
        return left_ns
    return left_ns * (1 - draw.between("warmer", *WARMER) * (1 - left_ns / ready.step_ns))


def _drawn_ns(ready: Scene, chosen: Sequence[Chosen], draws: Sequence[Draw]) -> list[float]:
    steps = steps_ns([edited(ready, chosen, draw) for draw in draws])
    return [warmed(ready, chosen, ready.scaled_ns(step, draw), draw) for step, draw in zip(steps, draws, strict=True)]


def _range(
    ready: Scene, likely_ns: float, drawn: tuple[float, float], grade: str, spread: float
) -> tuple[float, float]:
    """The drawn range, at least as wide as the grade and the past say, and wider by what the replay does not tell."""
    # Off by a share of what goes; where nearly all goes, by no more than twice that share of what stays.
    doubtful = min(abs(ready.step_ns - likely_ns), 2 * likely_ns)
    least = GRADES[grade][1] * doubtful + (NOISE_GPU if ready.graph.on_gpu else NOISE_CPU) * likely_ns
    widening = ready.quality.widening
    below = max((likely_ns - drawn[0]) * widening, least, spread * likely_ns)
    above = max((drawn[1] - likely_ns) * widening, least, spread * likely_ns)
    return likely_ns - below, likely_ns + above
