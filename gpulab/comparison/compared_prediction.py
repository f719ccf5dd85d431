"""The prediction that a comparison tests, and how it is known that the change between the runs is the predicted one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from gpulab.comparison.recorded_changes import RecordedChange, recorded_changes, unapplied_setting
from gpulab.comparison.sides import ComparedSide
from gpulab.errors import RunError
from gpulab.replay.history import NO_HISTORY, History
from gpulab.replay.parsing import parse_changes
from gpulab.replay.prediction import predict, replay_model
from gpulab.rules import Finding, Gain
from gpulab.rules.data.late_batches import LATE_BATCH_RULES
from gpulab.rules.engine.evidence import gain_from_prediction
from gpulab.wording import did_you_mean


class ChangeEvidence(Enum):
    """How it is known which change was made between two runs."""

    CALLER = "the caller named the change"
    SETTINGS = "settings that both runs recorded"
    RESOLVED = "the finding is gone"
    NONE = "nothing that was recorded"


@dataclass(frozen=True, kw_only=True)
class ComparedPrediction:
    """A prediction, and what shows that it is about the change that was made."""

    gain: Gain | None  # None: no prediction is about this change
    evidence: ChangeEvidence
    finding: Finding | None = None  # whose fix is predicted; None if another change is
    settings: tuple[RecordedChange, ...] = ()  # the recorded settings that differ
    rewrites: str = ""  # the what-if of these settings, if it is predicted
    refusal: str = ""  # why these settings cannot be predicted

    @property
    def is_of_change(self) -> bool:
        """Whether the prediction is about the change that was made, as far as the runs show."""
        return self.gain is not None and self.evidence is not ChangeEvidence.NONE


def first_finding_prediction(before: ComparedSide) -> ComparedPrediction:
    """Return the prediction of the first finding, without any evidence that its fix was applied."""
    first = before.typical.first
    return ComparedPrediction(gain=None if first is None else first.gain, evidence=ChangeEvidence.NONE, finding=first)


def named_prediction(before: ComparedSide, rule: str | None, predicted: Gain | None) -> ComparedPrediction:
    """Return the prediction that the caller chose. Raises RunError if there is no finding of this rule."""
    if predicted is not None or rule is None:
        return ComparedPrediction(gain=predicted, evidence=ChangeEvidence.CALLER)
    finding = next((finding for finding in before.findings if finding.rule == rule), None)
    if finding is None:
        rules = [finding.rule for finding in before.findings]
        raise RunError(
            f"The run {before.typical.run.name!r} has no finding {rule!r}.",
            why=f"its findings are {', '.join(rules) or 'none'}",
            fix=did_you_mean(rule, rules) or "name one of its findings, or omit the rule to use the first",
        )
    return ComparedPrediction(gain=finding.gain, evidence=ChangeEvidence.CALLER, finding=finding)


def recorded_prediction(before: ComparedSide, after: ComparedSide, history: History = NO_HISTORY) -> ComparedPrediction:
    """Return the prediction of the change that the recorded settings show.

    That is the fix of a finding, or another remedy of one, if it sets all values that differ; otherwise the what-if of
    these values. Without a difference, it is the fix of the first finding.
    """
    settings = recorded_changes(before.typical, after.typical)
    if not settings:
        return _unrecorded_prediction(before, after)
    remedies = (remedy for finding in before.findings for remedy in finding.alternatives)
    for finding in (*before.findings, *remedies):
        if all(change.is_in_fix_of(finding) for change in settings):
            return ComparedPrediction(
                gain=finding.gain, evidence=ChangeEvidence.SETTINGS, finding=finding, settings=settings
            )
    return _whatif_prediction(before, settings, history)


def _unrecorded_prediction(before: ComparedSide, after: ComparedSide) -> ComparedPrediction:
    """Return the prediction of the first finding where no recorded setting differs; none if its fix sets one."""
    assumed = first_finding_prediction(before)
    if assumed.finding is None:
        return assumed
    if unapplied := unapplied_setting(assumed.finding, after.typical.run):
        refusal = f"the fix of the first finding sets {unapplied}, and {after.name} does not have it"
        return ComparedPrediction(gain=None, evidence=ChangeEvidence.SETTINGS, refusal=refusal)
    if not after.crashes and same_cause(assumed.finding, after.findings) is None:
        return replace(assumed, evidence=ChangeEvidence.RESOLVED)
    return assumed


def _whatif_prediction(
    before: ComparedSide, settings: tuple[RecordedChange, ...], history: History
) -> ComparedPrediction:
    """Return the prediction of the values that differ; without a gain if one of them cannot be predicted."""
    unpredictable = [str(change) for change in settings if not change.rewrites]
    rewrites = " ".join(dict.fromkeys(change.rewrites for change in settings))
    diagnosis, gain, refusal = before.typical, None, ""
    if unpredictable:
        refusal = f"no what-if predicts {' and '.join(unpredictable)}"
    elif diagnosis.ledger is None:
        refusal = "no step was recorded with events"
    else:
        model = replay_model(diagnosis.run, diagnosis.steps, diagnosis.ledger)
        try:
            gain = gain_from_prediction(predict(model, parse_changes(rewrites), history=history))
        except RunError as error:
            refusal = error.why or error.problem
    return ComparedPrediction(
        gain=gain,
        evidence=ChangeEvidence.SETTINGS,
        settings=settings,
        rewrites=rewrites if gain is not None else "",
        refusal=refusal,
    )


def same_cause(finding: Finding, others: tuple[Finding, ...]) -> Finding | None:
    """Return the finding of the other side with the same cause: by the same rule, or also about late batches.

    With too few workers instead of none, the loop still waits for data.
    """
    rules = LATE_BATCH_RULES if finding.rule in LATE_BATCH_RULES else (finding.rule,)
    return next((other for other in others if other.rule in rules), None)
