"""Finding and Diagnosis: the answers rules give, frozen; every view shows these and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Spans, nothing
from gpulab.run import Run

CERTAIN, LIKELY, SUSPECT = "certain", "likely", "suspect"


def figures(**values: float | None) -> dict[str, float]:
    """Return the numbers of a finding, without those that are not known."""
    return {name: float(value) for name, value in values.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Gain:
    """What a fix is predicted to do to the typical un-profiled step, as a range and a hard bound, in ns.

    The typical step is the median one; where a cause strikes only now and then, as a checkpoint every hundred steps
    does, the median does not know of it, and the mean one is meant: `averaged`.

    `floor_ns <= best_ns <= worst_ns <= step_ns`; no fix of this cause can go below `floor_ns`.
    """

    step_ns: int  # the step as it is, without the profiler where that was measured
    best_ns: int
    worst_ns: int
    floor_ns: int
    basis: str  # how it was predicted, in one clause
    floor_means: str = "even removing it wholly"  # what the floor assumes, as the subject of "gives at most"
    averaged: bool = False  # all of these are means over many steps, not medians
    work: float = 1.0  # by how much more a step then does: the times are those of the work of a step as it is

    @property
    def best_speedup(self) -> float:
        """Step time as it is over the best predicted: 1.5 means one and a half times as fast."""
        return self.step_ns / self.best_ns

    @property
    def worst_speedup(self) -> float:
        """Step time as it is over the worst predicted."""
        return self.step_ns / self.worst_ns

    @property
    def bound(self) -> float:
        """The speed-up that nothing done about this cause can exceed."""
        return self.step_ns / self.floor_ns

    @property
    def saves_ns(self) -> int:
        """Predicted saving per step, the middle of the range."""
        return self.step_ns - (self.best_ns + self.worst_ns) // 2


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One cause, with what shows it and what to do about it."""

    rule: str = ""  # the name of its rule; the engine sets rule and topic
    topic: str = ""  # "data", "host" and so on
    claim: str  # one true sentence
    evidence: tuple[str, ...]  # what was measured, one sentence each
    parts: tuple[str, ...] = ()  # the parts of the ledger its fix would shrink
    numbers: Mapping[str, float] = field(default_factory=dict)  # the same as data, units in the keys
    fix: str = ""  # code to paste, "" where nothing should be changed
    advice: str = ""  # what to do in words, where code alone is not enough
    gain: Gain | None = None  # None: informs, predicts nothing
    confidence: str = LIKELY  # of the rule by itself; the engine lowers it where the recording gives reason to
    why_confidence: str = ""  # the clause after the word
    from_steps: bool = True  # judged by interior steps, so that few of them lower the confidence
    shown_by: Spans = field(default_factory=nothing)  # when it happened, for the timeline
    caveats: tuple[str, ...] = ()
    lesson: str = ""  # the notebook of the course that teaches it, as "05_data_loading"; set by the engine
    rewrites: str = ""  # the what-if that the gain comes from, as typed: "workers=4"; "" where no rewrite is its fix
    explains: tuple[str, ...] = ()  # rules whose findings it tells among its evidence, so that they are not told twice
    urgent: bool = False  # comes before everything, whatever it saves: the run failed, or will
    aside: bool = False  # worth knowing, never the verdict: nothing is wrong, or it happens once

    @property
    def saves_ns(self) -> int:
        """What findings are ranked by: the predicted saving per step."""
        return self.gain.saves_ns if self.gain else 0


@dataclass(frozen=True, kw_only=True)
class Unjudged:
    """A rule that could not look: why, and what to record so that it can."""

    rule: str = ""  # set by the engine
    about: str = ""  # what it would have judged, as "host synchronisations"; set by the engine
    why: str
    fix: str
    open_frac: float = 0.0  # the share of a step whose cause this leaves open


@dataclass(frozen=True, kw_only=True)
class Masked:
    """A finding that is not reported, and the rule whose finding explains it."""

    finding: Finding
    by: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Diagnosis:
    """What was found in a run: findings ranked by predicted saving, and what was not judged."""

    run: Run
    steps: Steps
    ledger: Ledger | None  # None where no step or no events were recorded
    findings: tuple[Finding, ...]
    unjudged: tuple[Unjudged, ...]
    verdict: str  # the headline sentence: the first finding's claim, or that nothing is worth changing
    next_limit: str | None  # what will limit once the first finding is mended
    masked: tuple[Masked, ...] = ()  # what another finding explains
    together: float | None = (
        None  # the speed-up that mending every idle cause found cannot exceed; None: fewer than two
    )

    @property
    def first(self) -> Finding | None:
        """The finding to act on first, if there is one."""
        return next((finding for finding in self.findings if not finding.aside), None)

    @property
    def others(self) -> tuple[Finding, ...]:
        """Every finding but the first."""
        return tuple(finding for finding in self.findings if finding is not self.first)
