"""Verdicts of a lesson: whether a claim holds, two results are equal, or a score reaches its target."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.lessons.equality import Equality
from gpulab.lessons.lesson import Target
from gpulab.lessons.question_view import hint_sections
from gpulab.lessons.sources import MEASURED, MODELLED, strength
from gpulab.lessons.stable_view import LessonView, lesson_view
from gpulab.views.sheet.sheet import Block, Facts, Line, Sheet, Verdict
from gpulab.wording import number, percent, unit_of

HOLDS, FAILS = "HOLDS", "FAILS"
MODEL_SAYS = "MODEL SAYS"  # what a model says has not been observed
FAILURE_ADVICE = (
    "This claim does not hold here, or not yet. If a cell above waits for your code, write that code first."
)
TIMING_ADVICE = " A timing claim can fail on a busy machine: run the measurement again."
DIFFERENT_RESULTS = "the two results compared above differ"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The result of an experiment in one sentence, whether it holds on this machine, and the measured values."""

    sentence: str
    holds: bool
    source: str
    before: float | None = None
    after: float | None = None
    unit: str = ""
    names: tuple[str, str] | None = None  # of the two values, if they are not before and after a change

    @property
    def line(self) -> str:
        """The claim as one line of text, which CI compares."""
        return f"{self.verdict}  {self.sentence}  [{self.source}]"

    @property
    def verdict(self) -> str:
        """HOLDS, FAILS, or MODEL SAYS if it holds in a model only."""
        if not self.holds:
            return FAILS
        return MODEL_SAYS if strength(self.source) == MODELLED else HOLDS

    @property
    def values(self) -> str:
        """The values before and after, or by name; the unit appears once, except "%", which each value has."""
        values = [value for value in (self.before, self.after) if value is not None]
        first_unit = self.unit if self.unit == "%" else ""
        texts = [
            *(format_value(value, first_unit) for value in values[:-1]),
            *(format_value(v, self.unit) for v in values[-1:]),
        ]
        if self.names is None or len(texts) < 2:
            return " -> ".join(texts)
        return "; ".join(f"{name}: {text}" for name, text in zip(self.names, texts, strict=True))


def format_value(value: float, unit: str) -> str:
    """Format a number with its unit: 0.67 in "%" as "67 %", 0.004 as "0.4 %"; in other units with three digits."""
    if unit == "%":
        return percent(value, figures=2 if abs(value) < 0.01 else None)
    return f"{number(value)} {unit_of(value, unit)}".rstrip()


def claim_view(claim: Claim, false_condition: str = "") -> LessonView:
    """Show a claim and its values; if it fails, also which condition is false and what to do."""
    good = None if claim.verdict == MODEL_SAYS else claim.holds
    blocks: list[Block] = [Verdict(claim.line, result=claim.verdict, good=good)]
    if claim.values:
        blocks.append(Facts((("figures", claim.values),)))
    if false_condition:
        blocks.append(Facts((("not true", false_condition),)))
    if not claim.holds:
        advice = FAILURE_ADVICE + (TIMING_ADVICE if claim.source == MEASURED else "")
        blocks.append(Line(advice, soft=True))
    return LessonView(Sheet("gpulab: a claim", tuple(blocks)), line=claim.line)


def equality_view(equal: Equality | None, problem: str = "") -> LessonView:
    """Show whether two variants gave the same result; `problem` describes the difference."""
    if equal is None:
        return lesson_view(
            "gpulab: different results", (Verdict(f"DIFFERENT  {problem}", result="DIFFERENT", good=False),)
        )
    line = Verdict("SAME  both variants give the same result", result="SAME", good=True)
    return lesson_view("gpulab: equal results", (line,), (Line(equal.description, soft=True),))


def score_view(par: Target, count: int | None) -> LessonView:
    """Show a count and its target, and the hints if it misses the target; None means that there is no valid result."""
    title = f"gpulab: score {par.key}"
    if count is None:
        goal = f"{par.value:,} {unit_of(par.value, par.unit)}"
        line = f"{par.key}: no score yet: not done, or not right. The target is {goal}"
        return lesson_view(title, (Verdict(line, result="no score yet"),), hint_sections(par.hints))
    reached = par.reached(count)
    word = "reached" if reached else "not reached yet"
    line = f"{par.key}: {count:,} {unit_of(count, par.unit)}, target {par.value:,}: {word}"
    return lesson_view(title, (Verdict(line, result=word, good=reached),), () if reached else hint_sections(par.hints))
