"""Finding and Diagnosis: what rules report, frozen. Views show these and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.analysis.steps.typical_step import TypicalStep
from gpulab.intervals import Spans, no_spans
from gpulab.run import Run

CERTAIN, LIKELY, SUSPECT = "certain", "likely", "suspect"
_MAX_NOISE = 1.05  # a predicted step that is longer by less is no loss: runs of the same loop vary as much
CONFIDENCE_LABELS = {CERTAIN: "high", LIKELY: "medium", SUSPECT: "low"}  # as views show them


def known_numbers(**values: float | None) -> dict[str, float]:
    """Return the numbers of a finding, without those that are unknown."""
    return {name: float(value) for name, value in values.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Gain:
    """The predicted effect of a fix on the typical un-profiled step: a range and a hard bound, in ns.

    The typical step is the median one. For a cause that affects few steps, such as a checkpoint every hundred steps,
    the median does not change, so the mean step is used: `averaged`.

    `floor_ns <= best_ns <= worst_ns`; no fix for this cause can go below `floor_ns`. A fix that may make the step
    slower has a `worst_ns` above `step_ns`.
    """

    step_ns: int  # the step before the fix, without profiler overhead if that was measured
    best_ns: int
    worst_ns: int
    floor_ns: int
    basis: str  # how it was predicted, a noun phrase after "The range comes from"
    floor_assumes: str = "this cause removed completely"  # what the floor assumes, after "upper bound, with"
    cold_floor_ns: int | None = None  # the floor if the rest of the step takes as long as now; None: `floor_ns`
    remaining_ns: Mapping[str, int] = field(default_factory=dict)  # predicted step by ledger part; {} without a replay
    limit: str | None = None  # what limits the predicted step if not host or device: "computation on the CPU cores"
    is_mean: bool = False  # these are means over many steps, not medians
    work_ratio: float = 1.0  # work in a step after the fix / before; all times are for the work of one step before

    @property
    def best_speedup(self) -> float:
        """Speed-up at the best predicted step time: 1.5 means 1.5 times as fast."""
        return self.step_ns / self.best_ns

    @property
    def worst_speedup(self) -> float:
        """Speed-up at the worst predicted step time."""
        return self.step_ns / self.worst_ns

    @property
    def bound(self) -> float:
        """The speed-up that no fix for this cause can exceed."""
        return self.step_ns / self.floor_ns

    @property
    def cold_bound(self) -> float:
        """The same speed-up if the rest of the step takes as long as now."""
        return self.step_ns / (self.cold_floor_ns or self.floor_ns)

    @property
    def rest_saved_frac(self) -> float:
        """The share, 0-1, by which the bound shortens the rest of the step."""
        return 1 - self.floor_ns / (self.cold_floor_ns or self.floor_ns)

    @property
    def may_lose(self) -> bool:
        """Whether the fix may make the step slower, by more than runs of the same loop differ."""
        return self.worst_ns > _MAX_NOISE * self.step_ns

    @property
    def is_bound_only(self) -> bool:
        """Whether only the bound is known: the range reaches from no gain to the bound."""
        return self.worst_ns == self.step_ns and self.best_ns == self.floor_ns

    @property
    def saved_ns(self) -> int:
        """Predicted saving per step: the middle of the range."""
        return self.step_ns - (self.best_ns + self.worst_ns) // 2

    def of_loop(self, step_frac: float) -> Gain:
        """The gain of a loop of which the steps take this share, 0-1, if the rest takes as long as now."""
        rest_ns = round(self.step_ns * (1 / step_frac - 1))
        return replace(
            self,
            step_ns=self.step_ns + rest_ns,
            best_ns=self.best_ns + rest_ns,
            worst_ns=self.worst_ns + rest_ns,
            floor_ns=self.floor_ns + rest_ns,
            cold_floor_ns=None if self.cold_floor_ns is None else self.cold_floor_ns + rest_ns,
            remaining_ns={},
            is_mean=True,
        )


@dataclass(frozen=True, kw_only=True)
class LoaderSettings:
    """New arguments of a call `DataLoader(dataset, ...)`; code cannot change a DataLoader that no variable holds.

    Where a framework holds it, they are arguments of the only such call, or of the only one in a function, or of
    another call: `TrainingArguments(...)`.
    """

    arguments: Mapping[str, int | bool]
    dropped: tuple[str, ...]  # arguments that must go with these
    dataset: str | None = None  # the variable that the call gets; None if it creates its dataset
    call: str = "DataLoader"
    any_dataset: bool = False  # the dataset of the call is unknown
    function: str = ""  # that has the call, if there are several


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One cause, its evidence, and its fix."""

    rule: str = ""  # set by the engine, as is topic
    topic: str = ""  # "data", "host" and so on
    claim: str  # one true sentence
    evidence: tuple[str, ...]  # measurements, one sentence each
    ledger_parts: tuple[str, ...] = ()  # the parts of the ledger that the fix would shrink
    numbers: Mapping[str, float] = field(default_factory=dict)  # the evidence as data; keys end in the unit
    fix: str = ""  # code to paste; "" if there is none
    function: str | None = None  # that the code belongs to; "" if to none; None: unknown, or for the engine to find out
    advice: str = ""  # what to do, if code alone is not enough
    loader_settings: LoaderSettings | None = None  # the change as values, if it is one of a DataLoader's arguments
    gain: Gain | None = None  # None if nothing is predicted
    confidence: str = LIKELY  # claimed by the rule; the engine lowers it if the recording is poor
    confidence_reason: str = ""  # the reason, a clause in parentheses after the confidence
    from_steps: bool = True  # based on interior steps, so that few of them lower the confidence
    spans: Spans = field(default_factory=no_spans)  # when it happened; shown on the timeline
    caveats: tuple[str, ...] = ()
    lesson: str = ""  # the course notebook, e.g. "05_data_loading"; set by the engine
    alternatives: tuple[Finding, ...] = ()  # the same with other remedies, for trials
    alternative: str = ""  # the name of the remedy, if this is one of those: "cached"
    rewrites: str = ""  # the what-if the gain comes from: "workers=4"; "" if no rewrite models the fix
    explains: tuple[str, ...] = ()  # rules whose findings are part of this evidence and are not reported again
    urgent: bool = False  # ranked first whatever it saves: the run failed, or will fail
    distorts_others: bool = False  # ranked next: without this cause, other findings would save another amount
    informs_only: bool = False  # never the verdict: no fault, a one-off, or a fix that may save less than 5 % of a step

    @property
    def label(self) -> str:
        """The rule, and which of its remedies this is, if it is not the first: "no_workers: cached"."""
        return f"{self.rule}: {self.alternative}" if self.alternative else self.rule

    @property
    def saved_ns(self) -> int:
        """The predicted saving per step: the middle of the range; 0 without a prediction."""
        return self.gain.saved_ns if self.gain else 0

    @property
    def least_saved_ns(self) -> int:
        """The lower end of that range, by which findings are ranked; negative if the fix may make the step slower."""
        if self.gain is None:
            return 0
        least_ns = self.gain.step_ns - self.gain.worst_ns
        return least_ns if self.gain.may_lose else max(0, least_ns)  # a loss within the noise is none


@dataclass(frozen=True, kw_only=True)
class Unjudged:
    """A rule that could not judge the run: the reason, and what to record instead."""

    rule: str = ""  # set by the engine
    about: str = ""  # what it would have judged, e.g. "host synchronisations"; set by the engine
    reason: str
    fix: str
    unexplained_frac: float = 0.0  # the share of a step that this leaves unexplained


@dataclass(frozen=True, kw_only=True)
class Masked:
    """A finding that is not reported, and the rule whose finding explains it."""

    finding: Finding
    explained_by: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Diagnosis:
    """The findings of a run, ranked by predicted saving, and the rules that could not judge it."""

    run: Run
    steps: Steps
    ledger: Ledger | None  # None if no step or no events were recorded
    findings: tuple[Finding, ...]
    unjudged: tuple[Unjudged, ...]
    verdict: str  # the headline: the claim of the first finding, or that there is no cause worth fixing
    next_limit: str | None  # what limits the step after the first finding is fixed
    step: TypicalStep | None = None  # the step that claims, gains and the table of a report are about; as `ledger`
    masked: tuple[Masked, ...] = ()  # findings that another finding explains
    combined_bound: float | None = None  # speed-up bound of fixing all idle causes; None if fewer than two
    combined_rules: tuple[str, ...] = ()  # the rules of the findings that this bound is about

    @property
    def first(self) -> Finding | None:
        """The finding to act on first; None if there is none."""
        return next((finding for finding in self.findings if not finding.informs_only), None)

    @property
    def others(self) -> tuple[Finding, ...]:
        """Every finding but the first."""
        return tuple(finding for finding in self.findings if finding is not self.first)
