"""Two runs side by side: what changed, whether it is more than noise, and how the prediction did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpulab.comparison import Comparison
from gpulab.rules.finding import Diagnosis, Finding
from gpulab.views.accounts import bar
from gpulab.views.headline import expectation
from gpulab.views.provenance import origin, spread
from gpulab.views.sheet import Answer, Block, Facts, Line, Row, Section, Sheet, Table
from gpulab.views.view import View
from gpulab.views.wording import Scale, duration, scale, sentence, times


@dataclass(frozen=True, eq=False, repr=False)
class ComparisonView(View):
    """A comparison that shows itself."""

    compared: Comparison


def comparison(compared: Comparison) -> ComparisonView:
    """What a comparison found, the answer first."""
    before, after = compared.before, compared.after
    blocks: list[Block] = [_answer(compared)]
    blocks += [Line(sentence(origin(each.run)), soft=True) for each in (before, after)]
    if before.ledger is not None and after.ledger is not None:
        blocks.append(Section("Where a step goes, on one scale", (*_bars(before, after), _parts(compared))))
    blocks.append(Section("What was found", (Facts(tuple(_findings(compared))),)))
    return ComparisonView(Sheet(f"gpulab: {before.run.name} and {after.run.name} compared", tuple(blocks)), compared)


def _answer(compared: Comparison) -> Answer:
    before, after = compared.before.run.name, compared.after.run.name
    interval = f"95 % interval {compared.ratio_low:.2f}-{times(compared.ratio_high)}"
    if not compared.above_noise:
        claim = "No difference above the noise"
    elif compared.ratio >= 1:
        claim = f"{times(compared.ratio)} as fast"
    else:
        claim = f"Slower: {times(1 / compared.ratio)} the time"
    kind = "recorded steps, with the profiler's cost in them" if compared.profiled else "steps without the profiler"
    evidence = (
        f"Step time {before}: {spread(compared.before_steps_ns)}.",
        f"Step time {after}: {spread(compared.after_steps_ns)}.",
        f"Ratio of the {'means' if compared.averaged else 'medians'} {times(compared.ratio)}, {interval}; {kind}.",
    )
    predicted = expectation(compared.predicted, verb="Predicted", measured_ns=_measured_ns(compared))
    return Answer(
        claim=f"{claim}: {before} takes {duration(compared.before_ns)} a step, {after} {duration(compared.after_ns)}.",
        leading=True,
        evidence=evidence,
        expectation=predicted,
        closing=_verdict(compared),
    )


def _measured_ns(compared: Comparison) -> float:
    """The measured step on the scale of the prediction, which may start from a slightly different step time."""
    start_ns = compared.predicted.step_ns if compared.predicted else compared.before_ns
    return start_ns / compared.ratio


def _verdict(compared: Comparison) -> str:
    if compared.predicted is not None:
        unit = scale(compared.before_ns)
        span = f"{unit.bare(compared.before_ns)} -> {unit(compared.after_ns)}"
        measured = f"Measured {span} ({times(compared.ratio)})"
        place = "inside the predicted range" if compared.inside else "outside the predicted range"
        return sentence(f"{measured}: {place}{f', as {compared.why}' if compared.why else ''}")
    return sentence(compared.why)


def _bars(before: Diagnosis, after: Diagnosis) -> Iterator[Block]:
    books = [(each.run.name, each.ledger) for each in (before, after) if each.ledger is not None]
    longest_ns = max(float(book.step_ns.mean()) for _, book in books)
    for name, book in books:
        mean_ns = float(book.step_ns.mean())
        label = f"{name}: {scale(longest_ns, figures=4)(mean_ns)} in the mean"
        yield bar(book, name, name=label, length=mean_ns / longest_ns)


def _parts(compared: Comparison) -> Table:
    """Each part before and after; the differences sum to the difference of the steps."""
    totals = [sum(part[2] for part in compared.parts), sum(part[3] for part in compared.parts)]
    unit = scale(max(totals), figures=4)
    rows = [
        Row((label, unit.bare(before), unit.bare(after), _signed(unit, after - before)), key=key)
        for key, label, before, after in compared.parts
        if before or after
    ]
    rows.append(Row(("step", *map(unit.bare, totals), _signed(unit, totals[1] - totals[0])), kind="total"))
    names = (compared.before.run.name, compared.after.run.name)
    counts = [int(np.size(each.ledger.step_ns)) for each in (compared.before, compared.after) if each.ledger]
    return Table(
        header=(f"{unit.unit} per step", *names, "difference"),
        rows=tuple(rows),
        caption=f"Means of the {counts[0]} and {counts[1]} recorded interior steps; the parts sum to the step.",
    )


def _signed(unit: Scale, ns: int) -> str:
    return f"+{unit.bare(ns)}" if ns > 0 else unit.bare(ns)


def _findings(compared: Comparison) -> Iterator[tuple[str, str]]:
    groups = (("resolved", compared.resolved), ("new", compared.new), ("remaining", compared.remaining))
    for name, findings in groups:
        if not findings:
            yield name, "none"
        for finding in findings:
            yield name, _claim(finding)


def _claim(finding: Finding) -> str:
    return sentence(finding.claim)
