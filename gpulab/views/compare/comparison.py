"""Two sides beside one another: what changed, whether it is more than noise, and how the prediction did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.ledger import Ledger
from gpulab.comparison import Comparison, Story
from gpulab.comparison.interval import Centre
from gpulab.rules.engine.finding import Finding
from gpulab.views.compare.changes import signed, taken, work
from gpulab.views.compare.story import StoryView, waterfall
from gpulab.views.report.headline import expectation
from gpulab.views.report.ledger_table import bar
from gpulab.views.report.provenance import origin, spread
from gpulab.views.sheet.sheet import Answer, Block, Facts, Line, Row, Section, Sheet, Table
from gpulab.views.sheet.view import View
from gpulab.wording import count, duration, percent, ratio, ratio_range, scale, sentence

MOST_RUNS = 6  # listed one by one


@dataclass(frozen=True, eq=False, repr=False)
class ComparisonView(View):
    """A comparison that shows itself."""

    compared: Comparison


def comparison(compared: Comparison | Story) -> ComparisonView | StoryView:
    """What a comparison found, the answer first."""
    if isinstance(compared, Story):
        return waterfall(compared)
    names = " and ".join(side.name for side in compared.sides)
    return ComparisonView(Sheet(f"gpulab: {names} compared", told(compared)), compared)


def told(compared: Comparison, more: Sequence[Block] = ()) -> tuple[Block, ...]:
    """The blocks of a comparison; `more` stands below where its numbers come from."""
    blocks: list[Block] = [_answer(compared), *_else(compared)]
    blocks += [Line(sentence(text), soft=True) for text in _sources(compared)]
    blocks += more
    if compared.parts:
        blocks.append(Section("Where a step goes, on one scale", (*_bars(compared), _parts(compared))))
    blocks.append(Section("What was found", (Facts(tuple(_findings(compared))),)))
    blocks += [section for section in (work(compared), taken(compared)) if section is not None]
    return tuple(blocks)


def _answer(compared: Comparison) -> Answer:
    before, after = (side.name for side in compared.sides)
    interval = f"95 % interval {ratio_range(compared.ratio_low, compared.ratio_high)}"
    kind = "recorded steps, with the profiler's cost in them" if compared.profiled else "steps without the profiler"
    of = f"{compared.centre.value}s"
    evidence = (
        *(f"Step time {side.name}: {_spread(compared, place)}." for place, side in enumerate(compared.sides)),
        f"Ratio of the {of} {ratio(compared.ratio)}, {interval}; {kind}.",
    )
    predicted = expectation(compared.predicted, verb="Predicted", measured_ns=compared.measured_ns)
    took = f"{before} takes {duration(compared.before_ns)} a step, {after} {duration(compared.after_ns)}."
    return Answer(
        claim=f"{verdict(compared)}: {took}",
        leading=True,
        evidence=evidence,
        expectation=predicted,
        closing=_outcome(compared),
    )


def verdict(compared: Comparison) -> str:
    """The first words: faster, slower, or neither."""
    if not compared.judged:
        return "Not judged"
    if not compared.above_noise:
        return "No difference above the noise"
    if compared.ratio >= 1:
        return f"{ratio(compared.ratio)} as fast"
    return f"Slower: {ratio(1 / compared.ratio)} the time"


def _spread(compared: Comparison, place: int) -> str:
    runs_ns, steps_ns = compared.runs_ns[place], (compared.before_steps_ns, compared.after_steps_ns)[place]
    if len(runs_ns) == 1:
        return spread(steps_ns)
    typical_ns = (compared.before_ns, compared.after_ns)[place]
    unit, of = scale(typical_ns), f"{compared.centre.value}s"
    few = len(runs_ns) <= MOST_RUNS
    each = ", ".join(map(unit.number, runs_ns)) if few else unit.range(runs_ns.min(), runs_ns.max())
    return f"{unit(typical_ns)} (mean of the {of} of {len(runs_ns)} runs: {each} {unit.unit})"


def _outcome(compared: Comparison) -> str:
    if compared.predicted is not None:
        unit = scale(compared.before_ns)
        span = f"{unit.number(compared.before_ns)} -> {unit(compared.after_ns)}"
        how = "Estimated" if compared.after.run.source.how == "virtual" else "Measured"
        measured = f"{how} {span} ({ratio(compared.ratio)})"
        by_itself = compared.predicted.best_ns <= compared.measured_ns <= compared.predicted.worst_ns
        place = _place(compared.inside, by_itself)
        if compared.above_noise and compared.why:
            return sentence(f"{measured}: {place}, as {compared.why}")
        return f"{measured}: {place}. {sentence(compared.why)}".strip()
    return sentence(compared.why)


def _place(inside: bool | None, by_itself: bool) -> str:
    """Where the measured step lies, beside the prediction; `by_itself`: without the noise of either."""
    if not inside:
        return "outside the predicted range"
    return "inside the predicted range" if by_itself else "inside the predicted range, give or take the noise"


def _else(compared: Comparison) -> Iterator[Block]:
    """What differs beside the code, or may be why the prediction was missed."""
    reasons, title = compared.circumstances, "What else differs"
    if compared.inside is False and compared.above_noise:
        reasons, title = compared.reasons, "Why the prediction may have missed"
    unit = scale(compared.after_ns)
    rows = [Row((sentence(each.text), signed(unit, each.effect_ns))) for each in reasons]
    if rows:
        header = ("", f"{unit.unit} per step, estimated")
        caption = "Each by itself, and not a share of the difference."
        yield Section(title, (Table(header=header, rows=tuple(rows), caption=caption if len(rows) > 1 else ""),))


def _sources(compared: Comparison) -> Iterator[str]:
    if compared.centre is Centre.FASTEST:
        yield "The fastest tenths of the steps are compared, as the medians of runs of one side differ more"
    once = all(len(side.runs) == 1 for side in compared.sides)
    if once:
        allowed = percent(compared.between_frac, 1)
        yield f"Each was recorded once: the interval allows for {allowed} between two runs of one program"
    for side, (left_out, steps) in zip(compared.sides, compared.left_out, strict=True):
        if left_out:
            yield f"Left out of {side.name}: {left_out} of {count(steps, 'step')} beside which other programs ran"
    for side in compared.sides:
        sources = {str(each.run.source) for each in side.runs}
        several = f"{count(len(side.runs), 'run')} of {side.name}: {'; '.join(sorted(sources))}"
        yield origin(side.runs[0].run) if len(side.runs) == 1 else several


def _bars(compared: Comparison) -> Iterator[Block]:
    books = [(side.name, _mean(compared, place)) for place, side in enumerate(compared.sides)]
    longest_ns = max(int(book.step_ns[0]) for _, book in books)
    for name, book in books:
        mean_ns = int(book.step_ns[0])
        label = f"{name}: {scale(longest_ns, figures=4)(mean_ns)} in the mean"
        yield bar(book, name, name=label, length=mean_ns / longest_ns)


def _mean(compared: Comparison, place: int) -> Ledger:
    """The mean recorded step of a side, as a ledger of one step."""
    kind = compared.sides[place].ledgers[0]
    means = {part.key: np.array([(part.before_ns, part.after_ns)[place]]) for part in compared.parts}
    return Ledger(kind.device, kind.parts, np.array([sum(means.values())]).reshape(1), means, {})


def _parts(compared: Comparison) -> Table:
    """Each part before and after; the differences sum to the difference of the steps."""
    totals = [sum(part.before_ns for part in compared.parts), sum(part.after_ns for part in compared.parts)]
    unit = scale(max(totals), figures=4)
    rows = [
        Row(
            (part.label, unit.number(part.before_ns), unit.number(part.after_ns), signed(unit, part.difference_ns)),
            part.key,
        )
        for part in compared.parts
        if part.before_ns or part.after_ns
    ]
    rows.append(Row(("step", *map(unit.number, totals), signed(unit, totals[1] - totals[0])), kind="total"))
    names = tuple(side.name for side in compared.sides)
    return Table(header=(f"{unit.unit} per step", *names, "difference"), rows=tuple(rows), caption=_caption(compared))


def _caption(compared: Comparison) -> str:
    counts = [sum(len(ledger.step_ns) for ledger in side.ledgers) for side in compared.sides]
    runs = max(len(side.ledgers) for side in compared.sides)
    over = f" in {runs} runs a side" if runs > 1 else ""
    return f"Means of the {counts[0]} and {counts[1]} recorded interior steps{over}; the parts sum to the step."


def _findings(compared: Comparison) -> Iterator[tuple[str, str]]:
    groups = (("resolved", compared.resolved), ("new", compared.new), ("remaining", compared.remaining))
    for name, findings in groups:
        if not findings:
            yield name, "none"
        for finding in findings:
            yield name, _claim(finding)


def _claim(finding: Finding) -> str:
    return sentence(finding.claim)
