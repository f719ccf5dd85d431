"""Evidence: the input of every rule: the run, its steps, its ledger, and cached results of analyses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from gpulab.analysis.data.loader import LoadingCost, loading_cost
from gpulab.analysis.events.device_work import missing_work_reason
from gpulab.analysis.host.frames import Frame, deepest_frame
from gpulab.analysis.host.launches import LaunchStats, launch_stats
from gpulab.analysis.host.other_programs import shared_cores_used_by_others
from gpulab.analysis.ranks.matching import MatchedCollectives, match_collectives
from gpulab.analysis.ranks.stragglers import Straggler, find_straggler
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.analysis.steps.typical_step import TypicalStep, typical_step
from gpulab.intervals import Spans, intersect
from gpulab.replay.history import NO_HISTORY, History
from gpulab.replay.parsing import parse_changes
from gpulab.replay.prediction import Prediction, ReplayModel, predict, refusal_reason, replay_model
from gpulab.replay.removal import removal
from gpulab.replay.rewrite import MIDDLE, Change
from gpulab.replay.sweep import sweep
from gpulab.replay.worker_count_model import REALISED_FRAC
from gpulab.rules.engine.finding import CERTAIN, LIKELY, SUSPECT, Diagnosis, Gain
from gpulab.rules.engine.pasted_names import UserNames, user_names
from gpulab.run import Run
from gpulab.wording import count, number

T = TypeVar("T")

# CPU work that is interrupted finds cold caches and sleeping threads afterwards. Without interruptions it is faster by
# this fraction of the share of the step that they took: measured, the remaining work took 0.4 to 0.9 of its time.
_WARM_CACHE_FRAC = 0.65
_MANY_CORES_FRAC = 0.1  # of all cores: other programs that take as many make every step longer
_MIN_PART_FRAC = 0.02  # of some spans: parts of the ledger that hold less are not named
_HEAVY_INFLATION = 1.6  # traced steps this many times as long do not represent the un-profiled loop


_FASTER_REST = "its fast end also assumes warm CPU caches, which speed up the rest of the step"


def with_warm_caches_ns(rest_ns: int, step_ns: int) -> int:
    """Return the shortest time that the rest of a step may take once nothing interrupts it."""
    return max(1, round(rest_ns * (1 - _WARM_CACHE_FRAC * (1 - rest_ns / step_ns))))


def gain_from_prediction(prediction: Prediction, basis: str = "", floor_means: str = "") -> Gain:
    """Convert a prediction to a gain for the same amount of work; it is a loss where the replay says so."""
    step_ns, work = prediction.step_ns, prediction.work_factor
    floor_ns = min(step_ns, max(1, round(prediction.floor_ns / work)))
    best_ns = max(floor_ns, round(prediction.best_ns / work))
    return Gain(
        step_ns=step_ns,
        best_ns=best_ns,
        worst_ns=max(best_ns, round(prediction.worst_ns / work)),
        floor_ns=floor_ns,
        basis=basis or "simulations of the recorded step with this fix",
        floor_assumes=floor_means or prediction.bound_label,
        cold_floor_ns=min(step_ns, max(floor_ns, round(prediction.cold_floor_ns / work))),
        remaining_ns={key: round(ns / work) for key, ns in prediction.part_ns.items()},
        limit=prediction.limit,
        work_ratio=work,
    )


def cores_of_other_programs(run: Run, steps: Steps) -> str | None:
    """Return how many cores other processes used while none was free: "1.3 of 2 cores"; None below a tenth of them."""
    cores, others = run.machine.cores or run.machine.cores_allowed, shared_cores_used_by_others(run, steps)
    if cores is None or others is None or others < _MANY_CORES_FRAC * cores:
        return None
    return f"{number(others, 2)} of {count(cores, 'core')}"


def _bound_only(gain: Gain, why: str) -> Gain:
    """Return the gain as a range from nothing to the bound, for a run whose replay is not reliable."""
    basis = f"only the upper bound, because the step could not be simulated ({why})"
    return replace(gain, best_ns=gain.floor_ns, worst_ns=gain.step_ns, basis=basis)


@dataclass(frozen=True, eq=False)
class Evidence:
    """A run and the results that rules ask for; frozen except for its cache."""

    run: Run
    steps: Steps
    optional_ledger: Ledger | None  # None if no step was recorded with events: see LEDGER in gpulab.rules.engine.needs
    peers: tuple[Run, ...] = ()  # the runs of all ranks, including this one; () for a single run
    history: History = NO_HISTORY  # predictions that were checked by measurement on this machine
    diagnose_alone: Callable[[Run], Diagnosis] | None = None  # diagnoses a peer as a single run
    _results: dict[Callable[..., Any], Any] = field(default_factory=dict, repr=False)

    @property
    def ledger(self) -> Ledger:
        """The ledger of the steps, for rules whose needs include it."""
        assert self.optional_ledger is not None, "a rule that uses the ledger must list LEDGER or GPU_WORK in its needs"
        return self.optional_ledger

    def cached(self, analyse: Callable[[Run, Steps, Ledger], T]) -> T:
        """Return the result of an analysis of this run, computed once however many rules ask for it."""
        if analyse not in self._results:
            self._results[analyse] = analyse(self.run, self.steps, self.ledger)
        result: T = self._results[analyse]
        return result

    @cached_property
    def names(self) -> UserNames:
        """The user's own variable names, for the code of fixes."""
        return user_names(self.run)

    @property
    def loading(self) -> LoadingCost | None:
        """The cost of data loading; None without a DataLoader."""
        return self.cached(loading_cost)

    @property
    def launches(self) -> LaunchStats | None:
        """How device work is launched; None if there was none."""
        return self.cached(launch_stats)

    @cached_property
    def python_frame(self) -> Frame | None:
        """The user's frame that ran outside PyTorch; None if unknown."""
        return deepest_frame(self.run, self.ledger.spans["python"])

    @cached_property
    def scene(self) -> ReplayModel:
        """The run prepared for what-if replays."""
        return replay_model(self.run, self.steps, self.ledger)

    @cached_property
    def arrivals(self) -> Straggler | None:
        """The arrival times of all ranks at collectives; None for a single run or if the ranks cannot be compared."""
        return find_straggler(self.peers) if len(self.peers) > 1 else None

    @cached_property
    def matched_collectives(self) -> MatchedCollectives | None:
        """The collectives of all ranks, matched; None for a single run or if the ranks share none."""
        return match_collectives(self.peers) if len(self.peers) > 1 else None

    @cached_property
    def contention(self) -> str | None:
        """The cores that other processes took from a loop on the CPU, as text; None if that was less than a tenth."""
        return None if self.on_gpu else cores_of_other_programs(self.run, self.steps)

    @cached_property
    def missing_work(self) -> str | None:
        """Why the GPU's work is missing from the run although there was some; the CPU is judged instead."""
        return missing_work_reason(self.run)

    @cached_property
    def is_training(self) -> bool:
        """Whether an optimizer ran."""
        names = self.run.event_rows.text("name").vocabulary
        return bool(self.run.optimizers) or any(name.startswith("Optimizer.step") for name in names)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU, otherwise it is the CPU. Without events, whether there is a GPU."""
        return self.optional_ledger.device == "gpu" if self.optional_ledger else bool(self.run.machine.gpus)

    @property
    def step_ns(self) -> int:
        """The step time that predictions start from."""
        assert self.steps.step_ns is not None, "a run with a ledger has interior steps"
        return max(1, self.steps.step_ns)

    @cached_property
    def typical_step(self) -> TypicalStep:
        """The step that claims, predictions and the ledger of a report are about, by part."""
        # Without the profiler, the wait for data is measured in many more steps.
        is_measured = self.loading is not None and self.steps.unprofiled_ns is not None
        loader_ns = self.loading.exposed_ns if self.loading and is_measured else None
        return typical_step(self.ledger, self.steps, loader_ns)

    def part_share(self, *keys: str) -> float:
        """Return the share of these ledger parts in the typical step, 0-1, for a claim."""
        return self.typical_step.frac(*keys)

    def idle_parts_of(self, spans: Spans, *busy: str) -> tuple[str, ...]:
        """Return the ledger parts that hold these spans: idle ones, the CPU's operators, and the given busy ones."""
        shared_ns = {
            part.key: intersect(self.ledger.spans[part.key], spans).total_ns
            for part in self.ledger.parts
            if not part.busy or not self.on_gpu or part.key in busy
        }
        return tuple(key for key, ns in shared_ns.items() if ns and ns >= _MIN_PART_FRAC * sum(shared_ns.values()))

    def unprofiled_ns(self, traced_ns: float, *parts: str) -> int:
        """Scale a traced duration to the un-profiled step; `parts`: the parts of the ledger that it lies in."""
        if self.optional_ledger is not None and parts:
            return self.typical_step.scaled_ns(traced_ns, *parts)
        return round(traced_ns * self.step_ns / max(1, self.steps.traced_ns or self.step_ns))

    def without_profiler_overhead(self, exposed_ns: int) -> int:
        """Return the dispatch cost without profiler overhead, which lengthens calls and little else."""
        added_ns = max(0, (self.steps.traced_ns or 0) - (self.steps.unprofiled_ns or self.steps.traced_ns or 0))
        return max(0, exposed_ns - added_ns)

    def gain_of_removing(
        self,
        exposed_ns: int,
        basis: str,
        floor_means: str,
        removed_fracs: tuple[float, float] = (REALISED_FRAC, 1.0),
        spans: Spans | None = None,
    ) -> Gain:
        """Return the gain of removing a cause that costs `exposed_ns` of the un-profiled step.

        `removed_fracs`: the fractions of that cost that go away at worst and at best. `spans`: when the cause occurred
        in the recording; the step is then replayed without them. Without spans, the cost is subtracted from the step.
        """
        left_ns = max(1, self.step_ns - exposed_ns)
        floor_ns = left_ns if self.on_gpu else with_warm_caches_ns(left_ns, self.step_ns)
        gain = Gain(
            step_ns=self.step_ns,
            best_ns=round(self.step_ns - removed_fracs[1] * (self.step_ns - floor_ns)),
            worst_ns=round(self.step_ns - removed_fracs[0] * (self.step_ns - left_ns)),
            floor_ns=floor_ns,
            basis=basis if self.on_gpu else f"{basis}; {_FASTER_REST}",
            floor_assumes=floor_means,
            cold_floor_ns=left_ns,
        )
        if spans is None or not spans.total_ns:
            return gain
        return self.gain_of_rewrite(
            removal("removed", spans, (*removed_fracs, 1.0), cause_frac=self._cut(spans, exposed_ns)), gain
        )

    def _cut(self, spans: Spans, exposed_ns: int) -> float:
        """Return the share of these spans that is due to the cause, rather than to another cause or to the profiler."""
        if self.scene.quality.refusal_reason is not None:
            return 1.0
        without_spans = sweep(removal("all", spans, (1.0, 1.0, 1.0)).rewrite.best_case(self.scene.graph, True))
        most_ns = self.step_ns - self.scene.scaled_ns(without_spans.step_ns, MIDDLE)
        return min(1.0, exposed_ns / max(1.0, most_ns))

    def gain_of_rewrite(self, rewrite: Change, otherwise: Gain) -> Gain:
        """Return the gain of a rewrite, by replaying the run with it.

        `otherwise`: the gain computed without a replay.

        If the replay is not reliable, only the bound of `otherwise` remains: anything from nothing to the bound.
        """
        refusal = refusal_reason(self.scene, (rewrite,))
        if refusal is not None:
            return _bound_only(otherwise, refusal)
        return gain_from_prediction(self._predict((rewrite,)), otherwise.basis, otherwise.floor_assumes)

    def _predict(self, rewrites: tuple[Change, ...]) -> Prediction:
        return predict(self.scene, rewrites, history=self.history)

    def applicable_rewrites(self, rewrites: str) -> str:
        """Return these rewrites as typed for a what-if if they apply to this run, else ""."""
        return rewrites if rewrites and refusal_reason(self.scene, parse_changes(rewrites)) is None else ""

    def gain_of_named_rewrites(self, rewrites: str, otherwise: Gain) -> Gain:
        """Return the gain of named rewrites if they apply to this run, else `otherwise`."""
        if self.scene.quality.refusal_reason is not None:
            return _bound_only(otherwise, self.scene.quality.refusal_reason)
        if not self.applicable_rewrites(rewrites):
            return otherwise
        return gain_from_prediction(self._predict(parse_changes(rewrites)))

    def step_share(self, traced_ns: float, *parts: str) -> float:
        """Return a traced duration as a share of the step; with `parts` as in `unprofiled_ns`."""
        if parts:
            return self.unprofiled_ns(traced_ns, *parts) / max(1, self.step_ns)
        return traced_ns / max(1, self.steps.traced_ns or 1)

    def confidence(self, best: str) -> tuple[str, str]:
        """Lower the confidence of a rule if the recording is poor; return it with the reason."""
        lower = {CERTAIN: LIKELY, LIKELY: SUSPECT}.get(best, SUSPECT)
        inflation = self.steps.profiler_overhead or 1.0
        if self.missing_work:
            return SUSPECT, self.missing_work
        if inflation > _HEAVY_INFLATION:
            return SUSPECT, f"the profiler made a step {number(inflation, 2)} times as long"
        if self.contention is not None:
            return lower, f"other processes used {self.contention}"
        if self.steps.detected_by == "whole run":
            return lower, "no training loop was found, so the whole recording is judged as one step"
        if self.steps.too_few:
            return lower, f"only {count(int(self.steps.interior.sum()), 'complete step')} recorded"
        return best, ""
