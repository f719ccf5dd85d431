"""How a prediction turned out, as a small value to keep: the history of a machine is made of these."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.comparison.pairs import Comparison


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A predicted step beside the measured one, in ns of the scale of the prediction."""

    kind: str  # the rule whose fix was applied, or what the caller predicted by
    step_ns: int  # the step that the prediction starts from
    best_ns: int
    likely_ns: int
    worst_ns: int
    measured_ns: int
    inside: bool
    device: str


def outcome(compared: Comparison, kind: str | None = None) -> Outcome | None:
    """How the prediction of a comparison turned out; None where there was none, or the measurement cannot judge it.

    What other programs disturbed, or other hardware ran, says nothing of a prediction.
    `kind`: what was predicted, where the caller predicted it: the kinds of the rewrites, joined by "+".
    """
    gain = compared.predicted
    if gain is None or compared.inside is None or not compared.judged or len(set(_devices(compared))) > 1:
        return None
    return Outcome(
        kind=kind or (compared.acted_on.rule if compared.acted_on else "unnamed"),
        step_ns=gain.step_ns,
        best_ns=gain.best_ns,
        likely_ns=gain.step_ns - gain.saves_ns,
        worst_ns=gain.worst_ns,
        measured_ns=round(compared.measured_ns),
        inside=compared.inside,
        device=_devices(compared)[0],
    )


def _devices(compared: Comparison) -> tuple[str, str]:
    return compared.before.run.source.device, compared.after.run.source.device
