"""Verdicts: whether a claim holds, whether two results are the same, and whether a count reached par."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.lessons.answer import Said, said
from gpulab.lessons.equality import Equality
from gpulab.lessons.lesson import Par
from gpulab.lessons.question_view import folded
from gpulab.views.sheet.sheet import Block, Facts, Line, Sheet, Verdict
from gpulab.wording import number, percent

HOLDS, FAILS = "HOLDS", "FAILS"
WHY_NOT = (
    "It does not hold here, or not yet. Where a cell above waits for your code, write that first. A time can fail on a "
    "busy machine: run the measurement again."
)
UNEQUAL = "the two do not give the same result, so a comparison of what they cost would mean nothing"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What an experiment shows, whether it does so here, and the figures."""

    sentence: str
    holds: bool
    source: str
    before: float | None = None
    after: float | None = None
    unit: str = ""

    @property
    def line(self) -> str:
        """The one line that CI compares."""
        return f"{HOLDS if self.holds else FAILS}  {self.sentence}  [{self.source}]"

    @property
    def figures(self) -> str:
        """Before and after, as far as told; the unit once, but for "%"."""
        told = [each for each in (self.before, self.after) if each is not None]
        first = self.unit if self.unit == "%" else ""
        return " -> ".join(
            [*(figure(each, first) for each in told[:-1]), *(figure(each, self.unit) for each in told[-1:])]
        )


def figure(value: float, unit: str) -> str:
    """A number with its unit: 0.67 as "67 %" and 0.004 as "0.4 %" where the unit is "%", else with three digits."""
    if unit == "%":
        return percent(value, figures=2 if abs(value) < 0.01 else None)
    return f"{number(value)} {unit}".rstrip()


def claimed(claim: Claim) -> Said:
    """A claim as it is shown: its line, and the figures beside it."""
    blocks: list[Block] = [Verdict(claim.line, word=HOLDS if claim.holds else FAILS, good=claim.holds)]
    if claim.figures:
        blocks.append(Facts((("figures", claim.figures),)))
    if not claim.holds:
        blocks.append(Line(WHY_NOT, soft=True))
    return Said(Sheet("gpulab: a claim", tuple(blocks)), line=claim.line)


def sameness(equal: Equality | None, problem: str = "") -> Said:
    """Whether two variants gave the same result; `problem`: how they differ."""
    if equal is None:
        return said("gpulab: not the same", (Verdict(f"DIFFERENT  {problem}", word="DIFFERENT", good=False),))
    line = Verdict("SAME  both give the same result", word="SAME", good=True)
    return said("gpulab: the same", (line,), (Line(equal.words, soft=True),))


def scored(par: Par, count: int | None) -> Said:
    """A count beside par, and what to do where it was not reached."""
    title = f"gpulab: score {par.key}"
    if count is None:
        line = f"{par.key}: not done yet; par is {par.par:,} {par.what}"
        return said(title, (Verdict(line, word="not done yet"),), folded(par.hints))
    reached = par.reached(count)
    word = "reached" if reached else "not yet"
    told = f"{par.key}: {count:,} {par.what}, par is {par.par:,}: {word}"
    return said(title, (Verdict(told, word=word, good=reached),), () if reached else folded(par.hints))
