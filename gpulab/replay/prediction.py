"""Predict the step time with several changes: a likely value, a range and a bound, by replaying them together."""

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

FAVOURABLE = Draw(otherwise=0.0)  # every unknown at its best value
SAMPLES = 100  # enough that the 10th and 90th percentile vary by a few per cent of the range between sets of draws
LEAST_SAMPLES = 12
# On a CPU the rest of a step may run faster alone, without cold caches and sleeping threads after each wait; or slower,
# if it shares memory with work that now runs in parallel. Range, as a fraction of the removed share of the step.
WARMER = (0.65, -0.35)
NOISE_GPU, NOISE_CPU = 0.01, 0.06  # of a step: variation between runs of the same loop on a shared machine


@dataclass(frozen=True, eq=False)
class Scene:
    """A run prepared for predictions: its calibrated graph, and the quality of its replay."""

    base: Calibrated
    quality: Quality

    @property
    def graph(self) -> Graph:
        """Graph of the un-profiled step."""
        return self.base.graph

    @property
    def step_ns(self) -> int:
        """The step time that predictions start from."""
        return self.graph.steps.step_ns or round(self.timed.step_ns)

    @cached_property
    def timed(self) -> Timed:
        """The unchanged step, replayed."""
        return swept(self.graph)

    @cached_property
    def by_calling(self) -> tuple[Floats, Floats]:
        """The unchanged step as a function of the real share of call cost: shares, and replayed ns."""
        shares = np.linspace(*UNKNOWN, 5)
        return shares, np.array([swept(with_calling(self.graph, share)).step_ns for share in shares])

    def scaled_ns(self, replayed_ns: float, draw: Draw) -> float:
        """Convert a replayed step time to the scale of the un-profiled step."""
        start_ns = self.timed.step_ns
        if not self.base.known:
            start_ns = float(np.interp(draw.between("calling", *UNKNOWN), *self.by_calling))
        return self.step_ns * replayed_ns / max(1.0, start_ns)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """The typical step with all rewrites applied: `floor_ns <= best_ns <= likely_ns <= worst_ns`."""

    scene: Scene
    chosen: tuple[Chosen, ...]
    step_ns: int  # without the changes
    likely_ns: int
    best_ns: int  # the 10th percentile of the possible values
    worst_ns: int  # the 90th percentile; it may be longer than `step_ns`
    floor_ns: int  # lower bound for any implementation of these changes
    grade: str  # the worst grade of its rewrites
    samples: int  # number of draws of the unknowns behind the range
    limit: str | None  # what limits the step if not host or device: "the workers", "the cores"
    learned: int = 0  # number of earlier predictions of this kind measured on this machine
    work: float = 1.0  # samples per step relative to now: 4 for four times the batch
    timed: Timed  # replay with all unknowns in the middle

    @property
    def run(self) -> Run:
        """The run that the prediction is about."""
        return self.scene.graph.run

    @property
    def speedup(self) -> float:
        """Speed-up for the same work: present step time over the likely one, times the change in samples per step."""
        return self.work * self.step_ns / self.likely_ns

    @property
    def bound(self) -> float:
        """Upper bound of the speed-up."""
        return self.work * self.step_ns / self.floor_ns

    @property
    def floor_means(self) -> str:
        """What the bound assumes, as the subject of "gives at most"."""
        means = [each.rewrite.ceiling_means for each in self.chosen]
        return means[0] if len(means) == 1 else "all changes together at no cost"


def scene(run: Run, steps: Steps, ledger: Ledger) -> Scene:
    """Prepare a run for predictions; the `quality` of the result says whether to trust them."""
    graph = graph_of(run, steps, ledger)
    return Scene(calibrated(graph, feeding(run, steps, ledger)), quality(graph))


def untold(ready: Scene, chosen: Sequence[Chosen]) -> str | None:
    """Return why these rewrites cannot be predicted from this run; None if they can."""
    if ready.quality.refusal is not None:
        return ready.quality.refusal
    graph = ready.graph
    for position, change in enumerate(chosen):
        reason = change.rewrite.lacking(graph, change.value)
        if reason is not None:
            return f"{change}: {reason}" if len(chosen) > 1 else reason
        if position + 1 < len(chosen):
            graph = change.rewrite.edit(graph, change.value, MIDDLE)  # another GPU may support another precision
    return None


def predict(
    ready: Scene, chosen: Sequence[Chosen], *, samples: int = SAMPLES, history: History = NO_HISTORY
) -> Prediction:
    """Replay the run with these rewrites.

    The order of `chosen` does not matter: rewrites are applied in catalogue order. Raises RunError if the replay cannot
    be trusted, or if a rewrite cannot be predicted from this run.
    """
    _check(ready, chosen)
    middle = swept(edited(ready, chosen, MIDDLE))
    likely_ns = warmed(ready, chosen, ready.scaled_ns(middle.step_ns, MIDDLE), MIDDLE)
    drawn_ns = _drawn_ns(ready, chosen, draws_of(samples)) if chosen else [likely_ns]
    ceiling = edited(ready, (), FAVOURABLE)
    for change in chosen:
        ceiling = change.rewrite.ceiling(ceiling, change.value)
    floor_ns = warmed(ready, chosen, ready.scaled_ns(swept(ceiling).step_ns, FAVOURABLE), FAVOURABLE)
    low, high = np.percentile(drawn_ns, (10, 90)) if len(drawn_ns) > 2 else (min(drawn_ns), max(drawn_ns))
    grade = max((change.rewrite.grade for change in chosen), default="A")
    learned = history.of("+".join(sorted(change.rewrite.name for change in chosen)))
    likely_ns = max(likely_ns, floor_ns)
    best, worst = _range(ready, likely_ns, (float(low), float(high)), grade, learned.spread)
    host_device_ns, limits = middle.own_ns, middle.graph.limits_ns
    limit = max(limits, key=lambda name: limits[name]) if limits and max(limits.values()) > host_device_ns else None
    return Prediction(
        scene=ready,
        chosen=tuple(chosen),
        step_ns=ready.step_ns,
        likely_ns=max(1, round(likely_ns)),
        best_ns=max(1, round(min(max(best, floor_ns), likely_ns))),
        worst_ns=max(1, round(max(worst, likely_ns))),
        floor_ns=max(1, round(min(floor_ns, likely_ns))),
        grade=grade,
        samples=len(drawn_ns),
        limit=limit,
        learned=learned.count,
        work=float(
            np.prod([change.rewrite.work(ready.graph, change.value) for change in chosen if change.rewrite.work])
        ),
        timed=middle,
    )


def _check(ready: Scene, chosen: Sequence[Chosen]) -> None:
    """Raise RunError if the replay cannot be trusted, or if a rewrite cannot be predicted from this run."""
    if ready.quality.refusal is not None:
        raise RunError("Nothing can be predicted from this run.", why=ready.quality.refusal, fix=ready.quality.fix)
    reason = untold(ready, chosen)
    if reason is not None:
        problem = f"{', '.join(map(str, chosen))} cannot be predicted from this run."
        raise RunError(problem, why=reason, fix="leave this change out, or record a run to which it applies")


def draws_of(samples: int) -> tuple[Draw, ...]:
    """Return this many random draws of the unknowns; below a dozen, only the two ends, as random ends are noise."""
    if samples < LEAST_SAMPLES:
        return Draw(otherwise=0.1), Draw(otherwise=0.9)
    return tuple(Draw(seed=number) for number in range(samples))


def edited(ready: Scene, chosen: Sequence[Chosen], draw: Draw) -> Graph:
    """Return the graph with the rewrites applied, in the given order."""
    graph = ready.graph
    if not ready.base.known:
        graph = with_calling(graph, draw.between("calling", *UNKNOWN))
    for change in chosen:
        graph = change.rewrite.edit(graph, change.value, draw)
    return graph


def warmed(ready: Scene, chosen: Sequence[Chosen], remaining_ns: float, draw: Draw) -> float:
    """Adjust the rest of a step on a CPU: alone, it may run faster, without cold caches and sleeping threads."""
    removes_waits = any(each.rewrite.calms for each in chosen)
    if ready.graph.on_gpu or remaining_ns >= ready.step_ns or not removes_waits:
        return remaining_ns
    return remaining_ns * (1 - draw.between("warmer", *WARMER) * (1 - remaining_ns / ready.step_ns))


def _drawn_ns(ready: Scene, chosen: Sequence[Chosen], draws: Sequence[Draw]) -> list[float]:
    steps = steps_ns([edited(ready, chosen, draw) for draw in draws])
    return [warmed(ready, chosen, ready.scaled_ns(step, draw), draw) for step, draw in zip(steps, draws, strict=True)]


def _range(
    ready: Scene, likely_ns: float, drawn_range: tuple[float, float], grade: str, spread: float
) -> tuple[float, float]:
    """Widen the drawn range to the minimum that grade and past errors require, and by the errors of the replay."""
    # The error is a fraction of the saving, but at most that fraction of twice the remaining time.
    uncertain_ns = min(abs(ready.step_ns - likely_ns), 2 * likely_ns)
    min_half_width = GRADES[grade][1] * uncertain_ns + (NOISE_GPU if ready.graph.on_gpu else NOISE_CPU) * likely_ns
    widening = ready.quality.widening
    below = max((likely_ns - drawn_range[0]) * widening, min_half_width, spread * likely_ns)
    above = max((drawn_range[1] - likely_ns) * widening, min_half_width, spread * likely_ns)
    return likely_ns - below, likely_ns + above
