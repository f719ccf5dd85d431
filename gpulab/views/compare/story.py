"""An optimisation story: a bar a run on one scale, what each change gave, and what all of them gave together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpulab.comparison import Comparison, Story
from gpulab.comparison.interval import Centre
from gpulab.views.compare.changes import signed
from gpulab.views.report.ledger_table import bar
from gpulab.views.report.provenance import origin
from gpulab.views.sheet.sheet import Answer, Block, Line, Row, Section, Sheet, Table
from gpulab.views.sheet.view import View
from gpulab.wording import count, duration, ratio, ratio_range, scale, sentence

MOST_PARTS = 2  # named beside a change
NAMED_FRAC = 0.02  # of the first step: a part that shrank by less is not named


@dataclass(frozen=True, eq=False, repr=False)
class StoryView(View):
    """A story that shows itself."""

    story: Story


def waterfall(story: Story) -> StoryView:
    """The whole first, then change by change."""
    title = f"gpulab: {', '.join(side.name for side in story.sides)} compared"
    blocks: list[Block] = [_answer(story)]
    if all(side.typical.ledger is not None for side in story.sides):
        blocks.append(Section("Each run on one scale", tuple(_bars(story))))
    blocks.append(Section("What each change gave", (_table(story),)))
    if all(change.parts for change in story.changes):
        blocks.append(Section("Where a step went", (_parts(story),)))
    blocks += [Line(sentence(origin(each.run)), soft=True) for side in story.sides for each in side.runs[:1]]
    return StoryView(Sheet(title, tuple(blocks)), story)


def _answer(story: Story) -> Answer:
    whole, changes = story.whole, count(len(story.changes), "change")
    first, last = story.sides[0].name, story.sides[-1].name
    if not whole.judged:
        claim = f"Not judged, as {whole.why.partition(';')[0]}"
    elif not whole.above_noise:
        claim = f"No difference above the noise after {changes}"
    elif whole.ratio >= 1:
        claim = f"{ratio(whole.ratio)} as fast after {changes}"
    else:
        claim = f"Slower after {changes}: {ratio(1 / whole.ratio)} the time"
    took = f"{first} takes {duration(story.step_ns[0])} a step, {last} {duration(story.step_ns[-1])}."
    kind = "recorded steps, with the profiler's cost in them" if whole.profiled else "steps without the profiler"
    evidence = (*_told(story), f"By {_by(whole.centre)}; {kind}. Intervals are of 95 %.")
    return Answer(claim=f"{claim}: {took}", leading=True, evidence=evidence)


def _by(centre: Centre) -> str:
    return "the fastest tenth of the steps" if centre is Centre.FASTEST else f"the {centre.value} step"


def _told(story: Story) -> Iterator[str]:
    """A sentence a change."""
    unit = scale(story.step_ns[0])
    for place, change in enumerate(story.changes):
        name, before = story.sides[place + 1].name, story.sides[place].name
        moved = story.step_ns[place + 1] - story.step_ns[place]
        if not change.judged:
            yield f"{name}: not judged against {before}, as {change.why.partition(';')[0]}."
            continue
        if not change.above_noise:
            yield f"{name}: no difference above the noise against {before} ({_interval(change)})."
            continue
        word = "less" if moved < 0 else "more"
        because = _because(story, place)
        yield f"{name}: {unit(abs(moved))} a step {word} than {before} ({_interval(change)}){because}."


def _because(story: Story, place: int) -> str:
    unit = scale(story.step_ns[0])
    named = [part for part in story.shrunk(place) if -part.difference_ns >= NAMED_FRAC * story.step_ns[0]]
    told = ", ".join(f"{part.label} {signed(unit, part.difference_ns)} {unit.unit}" for part in named[:MOST_PARTS])
    return f"; {told}" if told else ""


def _bars(story: Story) -> Iterator[Block]:
    longest_ns = max(story.step_ns)
    unit = scale(longest_ns)
    for place, (side, step_ns) in enumerate(zip(story.sides, story.step_ns, strict=True)):
        ledger = side.typical.ledger
        assert ledger is not None, "only where every side has one"
        change = f", {signed(unit, step_ns - story.step_ns[place - 1])} {unit.unit}" if place else ""
        yield bar(ledger, side.name, name=f"{side.name}: {unit(step_ns)}{change}", length=step_ns / longest_ns)


def _table(story: Story) -> Table:
    unit = scale(max(story.step_ns), figures=4)
    rows = [Row((story.sides[0].name, unit.number(story.step_ns[0]), "", "", ""))]
    for place, (change, total) in enumerate(zip(story.changes, story.totals, strict=True)):
        moved = signed(unit, story.step_ns[place + 1] - story.step_ns[place])
        cells = (unit.number(story.step_ns[place + 1]), moved, _interval(change), _interval(total))
        rows.append(Row((story.sides[place + 1].name, *cells)))
    whole = signed(unit, story.step_ns[-1] - story.step_ns[0])
    rows.append(Row(("in all", "", whole, "", _interval(story.whole)), kind="total"))
    header = ("", f"{unit.unit} per step", "difference", "against the one before", "against the first")
    caption = "How many times as fast, with its 95 % interval; the differences sum to the last row."
    return Table(header=header, rows=tuple(rows), caption=caption)


def _interval(change: Comparison) -> str:
    return f"{ratio(change.ratio)}, {ratio_range(change.ratio_low, change.ratio_high)}"


def _parts(story: Story) -> Table:
    """Each part of the mean recorded step, a column a run."""
    columns = [story.changes[0].parts, *(change.parts for change in story.changes)]
    values = [
        {part.key: part.before_ns if place == 0 else part.after_ns for part in column}
        for place, column in enumerate(columns)
    ]
    labels = {part.key: part.label for column in columns for part in column}
    totals = [sum(column.values()) for column in values]
    unit = scale(max(totals), figures=4)
    rows = [
        Row((label, *(unit.number(column.get(key, 0)) for column in values)), key)
        for key, label in labels.items()
        if any(column.get(key) for column in values)
    ]
    rows.append(Row(("step", *map(unit.number, totals)), kind="total"))
    caption = "Means of the recorded interior steps of each run; the parts sum to the step."
    names = (side.name for side in story.sides)
    return Table(header=(f"{unit.unit} per step", *names), rows=tuple(rows), caption=caption)
