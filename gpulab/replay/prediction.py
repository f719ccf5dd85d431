"""Predict the step time with several changes: a likely value, a range and a bound, by replaying them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpulab.analysis.data.loader import LoadingCost, loading_cost
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.errors import RunError
from gpulab.replay.batched_sweep import batch_step_times
from gpulab.replay.graph.calibration import Calibration, calibrate, scale_calls
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.graph.representative_part import representative_part
from gpulab.replay.history import NO_HISTORY, History
from gpulab.replay.pace_of_workers import with_pace_of_workers
from gpulab.replay.predicted_step import PredictedStep
from gpulab.replay.quality import Quality
from gpulab.replay.replayed_step import busy_frac, replayed_step, scaled_parts_ns
from gpulab.replay.rewrite import GRADES, LOADING_BOUND, MIDDLE, Change, Draw, Rewrite, joint_bound_label
from gpulab.replay.sweep import Schedule, sweep
from gpulab.run import Run
from gpulab.run_facts import has_operators

BEST_CASE = Draw(default_position=0.0)  # every unknown at its best value
SAMPLES = 40  # a single unknown has its exact percentiles then; a sum of several varies by 0.08 of one unknown's range
MAX_SAMPLED_NODES = 60_000  # host nodes and device ops; of a larger graph, only the two ends are replayed
MIN_SAMPLES = 12
# On a CPU the rest of a step may run faster alone, without cold caches and sleeping threads after each wait; or slower,
# if it shares memory with work that now runs in parallel. Range, as a fraction of the removed share of the step.
CACHE_EFFECT = (0.65, -0.35)
NOISE_GPU, NOISE_CPU = 0.01, 0.06  # of a step: variation between runs of the same loop on a shared machine
_LONGEST_NS = 2**62  # a longer step does not fit into 64 bits once its range is drawn; only damaged files have one


@dataclass(frozen=True, eq=False)
class ReplayModel:
    """A run prepared for predictions: its calibrated graph, and the quality of its replay.

    Both are computed when they are first asked for: a run whose replay is refused needs no calibration.
    """

    quality: Quality  # of the graph as recorded, which may hold a part of the run
    run: Run
    steps: Steps
    ledger: Ledger

    @cached_property
    def loading(self) -> LoadingCost | None:
        """The cost of data loading; None without a DataLoader."""
        return loading_cost(self.run, self.steps, self.ledger)

    @cached_property
    def calibration(self) -> Calibration:
        """The graph with the costs of the un-profiled step."""
        return calibrate(self.quality.graph, self.loading, self.quality.replayed)

    @property
    def graph(self) -> Graph:
        """Graph of the un-profiled step."""
        return self.calibration.graph

    @property
    def step_ns(self) -> int:
        """The step time that predictions start from."""
        return self.steps.step_ns or round(self.schedule.step_ns)

    @cached_property
    def schedule(self) -> Schedule:
        """The unchanged step, replayed."""
        return self.quality.replayed if self.graph is self.quality.graph else sweep(self.graph)

    @cached_property
    def part_ns(self) -> Mapping[str, int]:
        """The unchanged step by part of the ledger; sums to `step_ns`, except for rounding."""
        return scaled_parts_ns(replayed_step(self.schedule), self.step_ns)

    @property
    def busy_frac(self) -> float:
        """Share of the unchanged step in which the device works."""
        return busy_frac(self.part_ns)

    @cached_property
    def step_by_call_cost(self) -> tuple[Floats, Floats]:
        """The unchanged step as a function of the real share of call cost: shares, and replayed ns."""
        shares = np.linspace(*(self.calibration.share_range or (1.0, 1.0)), 5)
        return shares, np.array([sweep(scale_calls(self.graph, share)).step_ns for share in shares])

    @cached_property
    def least_step_ns(self) -> float:
        """The unchanged step, replayed, if recording lengthened its calls as much as it can."""
        return max(1.0, sweep(scale_calls(self.graph, self.calibration.certain_call_frac)).step_ns)

    def scaled_ns(self, replayed_ns: float, draw: Draw) -> float:
        """Convert a replayed step time to the scale of the un-profiled step."""
        start_ns = self.schedule.step_ns
        if (share_range := self.calibration.share_range) is not None:
            start_ns = float(np.interp(draw.between("calling", *share_range), *self.step_by_call_cost))
        return self.step_ns * replayed_ns / max(1.0, start_ns)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction(PredictedStep):
    """The typical step of a run with all rewrites applied."""

    model: ReplayModel
    changes: tuple[Change, ...]
    cold_floor_ns: int  # the floor if the rest of the step takes as long as now, without the allowance for warm caches
    replayed_ns: int  # the likely step before that allowance
    samples: int  # number of draws of the unknowns behind the range
    limit: str | None  # what limits the step if not host or device: "data loading by the workers"
    past_count: int = 0  # number of earlier predictions of this kind measured on this machine
    schedule: Schedule  # replay with all unknowns in the middle

    @property
    def run(self) -> Run:
        """The run that the prediction is about."""
        return self.model.graph.run

    @cached_property
    def part_ns(self) -> Mapping[str, int]:
        """The likely step by part of the ledger; sums to `likely_ns`, except for rounding."""
        return scaled_parts_ns(replayed_step(self.schedule), self.likely_ns)

    @property
    def busy_frac(self) -> float:
        """Share of the likely step in which the device works."""
        return busy_frac(self.part_ns)

    @property
    def cold_bound(self) -> float:
        """Upper bound of the speed-up if the rest of the step takes as long as now."""
        return self.work_factor * self.step_ns / self.cold_floor_ns

    @property
    def bound_label(self) -> str:
        """What the bound assumes, a noun phrase after "upper bound with"."""
        return joint_bound_label([change.rewrite for change in self.changes])


def replay_model(run: Run, steps: Steps, ledger: Ledger) -> ReplayModel:
    """Return the run prepared for predictions, once for these steps."""
    earlier: tuple[Steps, ReplayModel] | None = run.results.get(replay_model)
    if earlier is None or earlier[0] is not steps:
        earlier = run.results[replay_model] = steps, build_replay_model(run, steps, ledger)
    return earlier[1]


def build_replay_model(run: Run, steps: Steps, ledger: Ledger) -> ReplayModel:
    """Prepare a run for predictions; the `quality` of the result says whether to trust them."""
    return ReplayModel(Quality(*representative_part(run, steps, ledger)), run, steps, ledger)


def refusal_reason(model: ReplayModel, changes: Sequence[Change]) -> str | None:
    """Return why these rewrites cannot be predicted from this run; None if they can."""
    if model.quality.refusal_reason is not None:
        return model.quality.refusal_reason
    graph = model.graph
    for position, change in enumerate(changes):
        reason = no_operators_reason(change.rewrite, graph) or change.rewrite.refusal_reason(graph, change.value)
        if reason is not None:
            return f"{change}: {reason}" if len(changes) > 1 else reason
        if position + 1 < len(changes):
            graph = change.rewrite.edit(graph, change.value, MIDDLE)  # another GPU may support another precision
    return None


def no_operators_reason(rewrite: Rewrite, graph: Graph) -> str | None:
    """Return why a rewrite cannot be predicted without operators, if it needs them; None if it can."""
    if not rewrite.needs_operators or not graph.on_gpu or has_operators(graph.run):
        return None
    return "The operators of PyTorch were not recorded, so what the host does is unknown."


def predict(
    model: ReplayModel, changes: Sequence[Change], *, samples: int | None = None, history: History = NO_HISTORY
) -> Prediction:
    """Replay the run with these rewrites.

    The order of `changes` does not matter: rewrites are applied in catalogue order. `samples`: the number of draws of
    the unknowns; by default as many as the size of the run allows. Raises RunError if the replay cannot be trusted, or
    if a rewrite cannot be predicted from this run.
    """
    _check(model, changes)
    middle = sweep(apply_changes(model, changes, MIDDLE))
    replayed_ns = model.scaled_ns(middle.step_ns, MIDDLE)
    likely_ns = adjust_for_cpu_caches(model, changes, replayed_ns, MIDDLE)
    draws = draw_unknowns(affordable_samples(model) if samples is None else samples)
    drawn_ns = _drawn_ns(model, changes, draws) if changes else [likely_ns]
    if not np.isfinite([likely_ns, *drawn_ns]).all() or max(likely_ns, *drawn_ns) >= _LONGEST_NS:
        raise RunError(
            "A step with these changes cannot be predicted.",
            why="it would take longer than 64-bit nanoseconds can count: times or sizes in the run are extreme",
            fix="record the run again, or check the file that it was loaded from",
        )
    cold_floor_ns = _cold_floor_ns(model, changes)
    floor_ns = adjust_for_cpu_caches(model, changes, cold_floor_ns, BEST_CASE)
    low, high = np.percentile(drawn_ns, (10, 90)) if len(drawn_ns) > 2 else (min(drawn_ns), max(drawn_ns))
    grade = max((change.rewrite.grade for change in changes), default="A")
    learned = history.error_of("+".join(sorted(change.rewrite.name for change in changes)))
    waiting_ns = model.scaled_ns(middle.graph.waiting_ns, MIDDLE)  # not shortened by warm caches
    likely_ns = max(likely_ns, floor_ns, min(waiting_ns, replayed_ns))
    best, worst = _range(model, likely_ns, (float(low), float(high)), grade, learned.spread)
    best = max(best, (1 - NOISE_CPU) * min(waiting_ns, likely_ns))
    host_device_ns, limits = middle.host_device_step_ns, middle.graph.limits_ns
    limit = max(limits, key=lambda name: limits[name]) if limits and max(limits.values()) > host_device_ns else None
    return Prediction(
        model=model,
        changes=tuple(changes),
        step_ns=model.step_ns,
        likely_ns=max(1, round(likely_ns)),
        best_ns=max(1, round(min(max(best, floor_ns), likely_ns))),
        worst_ns=max(1, round(max(worst, likely_ns))),
        floor_ns=max(1, round(min(floor_ns, likely_ns))),
        cold_floor_ns=max(1, round(max(_measured_rest_ns(model, changes) or cold_floor_ns, min(floor_ns, likely_ns)))),
        replayed_ns=max(1, round(replayed_ns)),
        grade=grade,
        samples=len(drawn_ns),
        limit=limit,
        past_count=learned.count,
        work_factor=_work_factor(model, changes),
        schedule=middle,
    )


def _cold_floor_ns(model: ReplayModel, changes: Sequence[Change]) -> float:
    """Return the step with every change at its best case."""
    ceiling = apply_changes(model, (), BEST_CASE)
    for change in changes:
        ceiling = change.rewrite.best_case(ceiling, change.value)
    floor_ns = model.scaled_ns(sweep(ceiling).step_ns, BEST_CASE)
    least = model.calibration.certain_call_frac
    if changes and least < 1.0:  # calls may take less than recorded, with the changes as without them
        floor_ns = min(floor_ns, model.step_ns * sweep(scale_calls(ceiling, least)).step_ns / model.least_step_ns)
    return floor_ns


def _measured_rest_ns(model: ReplayModel, changes: Sequence[Change]) -> int | None:
    """Return the rest of a step on a CPU without data loading, if that is the bound of these changes.

    The wait for data is known for each step, without the profiler; the replay scales all recorded waits alike.
    """
    are_of_loading = all(change.rewrite.bound_label == LOADING_BOUND for change in changes)
    if not changes or not are_of_loading or model.loading is None or model.ledger.device == "gpu":
        return None
    return model.loading.rest_ns


def _work_factor(model: ReplayModel, changes: Sequence[Change]) -> float:
    factors = [each.rewrite.work_factor(model.graph, each.value) for each in changes if each.rewrite.work_factor]
    return float(np.prod(factors))


def affordable_samples(model: ReplayModel) -> int:
    """Return the number of draws of the unknowns: one number for every prediction; two for a very large run."""
    return SAMPLES if len(model.graph.host) + len(model.graph.device) <= MAX_SAMPLED_NODES else 2


def _check(ready: ReplayModel, chosen: Sequence[Change]) -> None:
    """Raise RunError if the replay cannot be trusted, or if a rewrite cannot be predicted from this run."""
    if ready.quality.refusal is not None:
        raise ready.quality.refusal
    reason = refusal_reason(ready, chosen)
    if reason is not None:
        problem = f"{', '.join(map(str, chosen))} cannot be predicted from this run."
        raise RunError(problem, why=reason, fix="leave this change out, or record a run to which it applies")


def draw_unknowns(samples: int) -> tuple[Draw, ...]:
    """Return this many random draws of the unknowns; below a dozen, only the two ends, as random ends are noise."""
    if samples < MIN_SAMPLES:
        return Draw(default_position=0.1), Draw(default_position=0.9)
    return tuple(Draw(number=number, count=samples) for number in range(samples))


def apply_changes(model: ReplayModel, changes: Sequence[Change], draw: Draw) -> Graph:
    """Return the graph with the rewrites applied, in the given order."""
    graph = model.graph
    if (share_range := model.calibration.share_range) is not None:
        graph = scale_calls(graph, draw.between("calling", *share_range))
    for change in changes:
        graph = change.rewrite.edit(graph, change.value, draw)
    return with_pace_of_workers(graph, model.graph, model.schedule.step_ns) if changes else graph


def adjust_for_cpu_caches(model: ReplayModel, changes: Sequence[Change], remaining_ns: float, draw: Draw) -> float:
    """Adjust the rest of a step on a CPU: alone, it may run faster, without cold caches and sleeping threads."""
    removes_waits = any(each.rewrite.removes_waits for each in changes)
    if model.graph.on_gpu or remaining_ns >= model.step_ns or not removes_waits:
        return remaining_ns
    return with_warm_caches(remaining_ns, model.step_ns, draw)


def with_warm_caches(remaining_ns: float, step_ns: float, draw: Draw) -> float:
    """Return what remains of a step on a CPU without some waits, during which other code uses caches and cores."""
    return remaining_ns * (1 - draw.between("warmer", *CACHE_EFFECT) * (1 - remaining_ns / step_ns))


def _drawn_ns(ready: ReplayModel, chosen: Sequence[Change], draws: Sequence[Draw]) -> list[float]:
    steps = batch_step_times([apply_changes(ready, chosen, draw) for draw in draws])
    return [
        adjust_for_cpu_caches(ready, chosen, ready.scaled_ns(step, draw), draw)
        for step, draw in zip(steps, draws, strict=True)
    ]


def _range(
    ready: ReplayModel, likely_ns: float, drawn_range: tuple[float, float], grade: str, spread: float
) -> tuple[float, float]:
    """Widen the drawn range to the minimum that grade and past errors require, and by the errors of the replay."""
    # The error is a fraction of the saving, but at most that fraction of twice the remaining time.
    uncertain_ns = min(abs(ready.step_ns - likely_ns), 2 * likely_ns)
    min_half_width = GRADES[grade][1] * uncertain_ns + (NOISE_GPU if ready.graph.on_gpu else NOISE_CPU) * likely_ns
    widening = ready.quality.widening
    below = max((likely_ns - drawn_range[0]) * widening, min_half_width, spread * likely_ns)
    above = max((drawn_range[1] - likely_ns) * widening, min_half_width, spread * likely_ns)
    return likely_ns - below, likely_ns + above
