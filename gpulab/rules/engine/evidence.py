"""What every rule is given: the run, its steps, its ledger, and the figures they share, worked out once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from gpulab.analysis.data.loader import Feeding, feeding
from gpulab.analysis.events.device_work import missing_work
from gpulab.analysis.host.frames import Frame, frame_of
from gpulab.analysis.host.launches import Launching, launching
from gpulab.analysis.ranks.stragglers import Arrivals, arrivals
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Spans
from gpulab.replay.history import NO_HISTORY, History
from gpulab.replay.parsing import chosen
from gpulab.replay.prediction import Prediction, Scene, predict, scene, untold
from gpulab.replay.removal import without
from gpulab.replay.rewrite import MIDDLE, Chosen
from gpulab.replay.sweep import swept
from gpulab.replay.worker_queue import REALISED_FRAC
from gpulab.rules.engine.finding import CERTAIN, LIKELY, SUSPECT, Diagnosis, Gain
from gpulab.rules.engine.user_names import Names, names
from gpulab.run import Run
from gpulab.wording import count, number

T = TypeVar("T")

# Work on a CPU that waits or is interrupted finds cold caches and sleeping threads; alone it is faster by so much of
# the share that was taken away: what was left of a step took 0.4 to 0.9 of the time it had taken before.
WARMER_FRAC = 0.65
DRAWS = 40  # of the unknowns, for the gain of a finding
MOST_SWEPT = 60_000  # stops and device work of which as many draws take some 0.3 s
HEAVY_INFLATION = 1.6  # traced steps this much longer are another program than the one to judge


def warmed_ns(left_ns: int, step_ns: int) -> int:
    """How long what is left of a step may take at the least, once nothing interrupts it any more."""
    return max(1, round(left_ns * (1 - WARMER_FRAC * (1 - left_ns / step_ns))))


def samples_for(ready: Scene) -> int:
    """How many draws of the unknowns a rule can afford: for a very large run the two ends alone."""
    return DRAWS if len(ready.graph.host) + len(ready.graph.device) <= MOST_SWEPT else 2


def gain_of(told: Prediction, basis: str = "", floor_means: str = "") -> Gain:
    """A prediction as a gain: for the same work, and never worse than leaving everything as it is."""
    step_ns, work = told.step_ns, told.work
    floor_ns = min(step_ns, max(1, round(told.floor_ns / work)))
    best_ns = min(step_ns, max(floor_ns, round(told.best_ns / work)))
    return Gain(
        step_ns=step_ns,
        best_ns=best_ns,
        worst_ns=min(step_ns, max(best_ns, round(told.worst_ns / work))),
        floor_ns=floor_ns,
        basis=basis or f"replaying the step with {', '.join(map(str, told.chosen))}",
        floor_means=floor_means or told.floor_means,
        work=work,
    )


def _bound_only(gain: Gain, why: str) -> Gain:
    """Anything between nothing and all: what is left where no replay is to be trusted."""
    return replace(gain, best_ns=gain.floor_ns, worst_ns=gain.step_ns, basis=f"a bound only, as {why}")


@dataclass(frozen=True, eq=False)
class Evidence:
    """A run with the figures that rules ask about; frozen but for what is worked out on demand."""

    run: Run
    steps: Steps
    accounts: Ledger | None  # None where no step was recorded with events: see LEDGER in gpulab.rules.engine.needs
    peers: tuple[Run, ...] = ()  # the runs of all ranks, this one among them; () where it is alone
    history: History = NO_HISTORY  # predictions that were measured on this machine
    diagnose_alone: Callable[[Run], Diagnosis] | None = None  # the diagnosis of a peer by itself
    _known: dict[Callable[..., Any], Any] = field(default_factory=dict, repr=False)

    @property
    def ledger(self) -> Ledger:
        """Where each step's time went; only for rules that need it."""
        assert self.accounts is not None, "a rule that asks for the ledger names LEDGER or GPU_WORK among its needs"
        return self.accounts

    def once(self, ask: Callable[[Run, Steps, Ledger], T]) -> T:
        """What an analysis answers for this run, worked out once however many rules ask."""
        if ask not in self._known:
            self._known[ask] = ask(self.run, self.steps, self.ledger)
        answer: T = self._known[ask]
        return answer

    @cached_property
    def names(self) -> Names:
        """What the user calls the things a fix speaks of."""
        return names(self.run)

    @property
    def feeding(self) -> Feeding | None:
        """What feeding the model costs; None without a DataLoader."""
        return self.once(feeding)

    @property
    def launching(self) -> Launching | None:
        """How work is started; None where none was."""
        return self.once(launching)

    @cached_property
    def python_frame(self) -> Frame | None:
        """The user's frame that ran while nothing of PyTorch did; None where not told."""
        return frame_of(self.run, self.ledger.spans["python"])

    @cached_property
    def scene(self) -> Scene:
        """The run made ready for what-ifs."""
        return scene(self.run, self.steps, self.ledger)

    @cached_property
    def arrivals(self) -> Arrivals | None:
        """Which rank the others wait for; None where this run is alone, or the ranks cannot be compared."""
        return arrivals(self.peers) if len(self.peers) > 1 else None

    @cached_property
    def missing_work(self) -> str | None:
        """Why the GPU's work is not in the run although there was some; the CPU is judged in its place."""
        return missing_work(self.run)

    @cached_property
    def trains(self) -> bool:
        """Whether an optimizer ran."""
        names = self.run.event_rows.words("name").vocabulary
        return bool(self.run.optimizers) or any(name.startswith("Optimizer.step") for name in names)

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU is the device; otherwise the CPU is. Without events, whether there is one."""
        return self.accounts.device == "gpu" if self.accounts else bool(self.run.machine.gpus)

    @property
    def step_ns(self) -> int:
        """The step time that predictions start from."""
        assert self.steps.step_ns is not None, "there is a ledger only where there are interior steps"
        return self.steps.step_ns

    def plain_ns(self, traced_ns: int) -> int:
        """A traced duration scaled to the un-profiled step."""
        return round(traced_ns * self.step_ns / max(1, self.steps.traced_ns or self.step_ns))

    def without_recording(self, exposed_ns: int) -> int:
        """What the cost of calling operators is in the un-profiled step: recording adds to that, and to little else."""
        added_ns = max(0, (self.steps.traced_ns or 0) - (self.steps.plain_ns or self.steps.traced_ns or 0))
        return max(0, exposed_ns - added_ns)

    def bounded(
        self,
        exposed_ns: int,
        basis: str,
        floor_means: str,
        realised: tuple[float, float] = (REALISED_FRAC, 1.0),
        spans: Spans | None = None,
    ) -> Gain:
        """The gain of removing a cause that costs so much of the un-profiled step, and how much of that is likely.

        `spans`: when it happened in the recording; the step is then replayed without that. Where none are given, what
        it costs is taken off the step.
        """
        left_ns = max(1, self.step_ns - exposed_ns)
        floor_ns = left_ns if self.on_gpu else warmed_ns(left_ns, self.step_ns)
        plain = Gain(
            step_ns=self.step_ns,
            best_ns=round(self.step_ns - realised[1] * (self.step_ns - floor_ns)),
            worst_ns=round(self.step_ns - realised[0] * (self.step_ns - left_ns)),
            floor_ns=floor_ns,
            basis=basis,
            floor_means=floor_means,
        )
        if spans is None or not spans.total_ns:
            return plain
        return self.replayed(without("removed", spans, (*realised, 1.0), cut=self._cut(spans, exposed_ns)), plain)

    def _cut(self, spans: Spans, exposed_ns: int) -> float:
        """The share of these spans that is the cause's: part may be another's, or the recording's own."""
        if self.scene.quality.refusal is not None:
            return 1.0
        whole = swept(without("all", spans, (1.0, 1.0, 1.0)).rewrite.ceiling(self.scene.graph, True))
        most_ns = self.step_ns - self.scene.scaled_ns(whole.step_ns, MIDDLE)
        return min(1.0, exposed_ns / max(1.0, most_ns))

    def replayed(self, what: Chosen, otherwise: Gain) -> Gain:
        """The gain of a rewrite, by replaying the run with it; `otherwise` is worked out without a replay.

        Where the replay is not to be trusted, only the bound of that is left: anything between nothing and all.
        """
        refusal = untold(self.scene, (what,))
        if refusal is not None:
            return _bound_only(otherwise, refusal)
        return gain_of(self._told((what,)), otherwise.basis, otherwise.floor_means)

    def _told(self, rewrites: tuple[Chosen, ...]) -> Prediction:
        return predict(self.scene, rewrites, samples=samples_for(self.scene), history=self.history)

    def typed(self, rewrites: str) -> str:
        """The rewrites as a person may type them, where this run can tell of them; "" where not."""
        return rewrites if rewrites and untold(self.scene, chosen(rewrites)) is None else ""

    def predicted(self, rewrites: str, otherwise: Gain) -> Gain:
        """The gain of rewrites that are known by name, where this run can tell of them; `otherwise` where not."""
        if self.scene.quality.refusal is not None:
            return _bound_only(otherwise, self.scene.quality.refusal)
        if not self.typed(rewrites):
            return otherwise
        return gain_of(self._told(chosen(rewrites)))

    def step_share(self, dur_ns: float) -> float:
        """A duration as a share of the traced step."""
        return dur_ns / max(1, self.steps.traced_ns or 1)

    def confidence(self, best: str) -> tuple[str, str]:
        """The confidence a rule claims and its reason, lowered where there are too few interior steps for a median."""
        lower = {CERTAIN: LIKELY, LIKELY: SUSPECT}.get(best, SUSPECT)
        inflation = self.steps.inflation or 1.0
        if self.missing_work:
            return SUSPECT, self.missing_work
        if inflation > HEAVY_INFLATION:
            return SUSPECT, f"recording made a step {number(inflation, 2)} times as long"
        if self.steps.found_by == "whole run":
            return lower, "no loop was found, so all that was recorded is judged as one step"
        if self.steps.few:
            return lower, f"only {count(int(self.steps.interior.sum()), 'interior step')} recorded"
        return best, ""
