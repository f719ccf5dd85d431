"""Several runs in a row: one bar per run, the gain of each change, and the total gain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpulab.comparison import Comparison, Story
from gpulab.comparison.interval import Statistic
from gpulab.views.compare.crashes import crash_text
from gpulab.views.report.ledger_table import ledger_bar
from gpulab.views.report.provenance import origin
from gpulab.views.sheet.sheet import Answer, Block, Line, Row, Section, Sheet, TableBlock
from gpulab.views.sheet.view import View
from gpulab.wording import count, duration, ratio, ratio_range, scale, sentence

MAX_PARTS = 2  # named per change
MIN_PART_FRAC = 0.02  # of the first step: smaller reductions are not named


@dataclass(frozen=True, eq=False, repr=False)
class StoryView(View):
    """A sequence of runs as a view."""

    story: Story


def story_view(story: Story) -> StoryView:
    """Return the view of several runs: the total change first, then each change."""
    title = f"gpulab: {', '.join(side.name for side in story.sides)} compared"
    blocks: list[Block] = [_answer(story)]
    if all(side.typical.ledger is not None for side in story.sides):
        blocks.append(Section("Step time of each run", tuple(_bars(story))))
    blocks.append(Section("Gain of each change", (_table(story),)))
    if all(change.parts for change in story.changes):
        blocks.append(Section("Where the step time goes", (_parts(story),)))
    blocks += [Line(sentence(origin(each.run)), soft=True) for side in story.sides for each in side.runs[:1]]
    return StoryView(Sheet(title, tuple(blocks)), story)


def _answer(story: Story) -> Answer:
    total, changes = story.overall, count(len(story.changes), "change")
    first, last = story.sides[0].name, story.sides[-1].name
    if not total.conclusive:
        claim = f"No verdict, because {total.why.partition(';')[0]}"
    elif not total.above_noise:
        claim = f"No difference above the noise after {changes}"
    elif total.ratio >= 1:
        claim = f"{ratio(total.ratio)} as fast after {changes}"
    else:
        claim = f"Slower after {changes}, {ratio(1 / total.ratio)} the step time"
    step_times = (
        f'a step takes {duration(story.step_ns[0])} in "{first}" and {duration(story.step_ns[-1])} in "{last}".'
    )
    kind = "recorded steps, including profiler overhead" if total.profiled else "steps without the profiler"
    evidence = (*_change_lines(story), f"Compared by {_statistic(total.statistic)}; {kind}. Intervals are 95 %.")
    return Answer(claim=f"{crash_text(story.sides)}{claim}: {step_times}", leading=True, evidence=evidence)


def _statistic(centre: Statistic) -> str:
    return "the fastest 10 % of the steps" if centre is Statistic.FASTEST else f"the {centre.value} step"


def _change_lines(story: Story) -> Iterator[str]:
    """Yield a sentence for each change."""
    unit = scale(story.step_ns[0])
    for index, change in enumerate(story.changes):
        name, before = story.sides[index + 1].name, story.sides[index].name
        difference_ns = story.step_ns[index + 1] - story.step_ns[index]
        if not change.conclusive:
            yield f"{name}: not judged against {before}, because {change.why.partition(';')[0]}."
            continue
        if not change.above_noise:
            yield f"{name}: no difference from {before} above the noise ({_interval(change)})."
            continue
        direction = "less" if difference_ns < 0 else "more"
        parts = _largest_reductions(story, index)
        yield f"{name}: {unit(abs(difference_ns))} per step {direction} than {before} ({_interval(change)}){parts}."


def _largest_reductions(story: Story, index: int) -> str:
    unit = scale(story.step_ns[0])
    reduced = [part for part in story.shortened_parts(index) if -part.difference_ns >= MIN_PART_FRAC * story.step_ns[0]]
    differences = ", ".join(
        f"{part.label} {unit.signed_number(part.difference_ns)} {unit.unit}" for part in reduced[:MAX_PARTS]
    )
    return f"; {differences}" if differences else ""


def _bars(story: Story) -> Iterator[Block]:
    longest_ns = max(story.step_ns)
    unit = scale(longest_ns)
    for index, (side, step_ns) in enumerate(zip(story.sides, story.step_ns, strict=True)):
        ledger = side.typical.ledger
        assert ledger is not None, "drawn only if every side has a ledger"
        change = f", {unit.signed_number(step_ns - story.step_ns[index - 1])} {unit.unit}" if index else ""
        yield ledger_bar(ledger, side.name, name=f"{side.name}: {unit(step_ns)}{change}", length=step_ns / longest_ns)


def _table(story: Story) -> TableBlock:
    unit = scale(max(story.step_ns), figures=4)
    rows = [Row((story.sides[0].name, unit.number(story.step_ns[0]), "", "", ""))]
    for index, (change, total) in enumerate(zip(story.changes, story.totals, strict=True)):
        difference = unit.signed_number(story.step_ns[index + 1] - story.step_ns[index])
        cells = (unit.number(story.step_ns[index + 1]), difference, _interval(change), _interval(total))
        rows.append(Row((story.sides[index + 1].name, *cells)))
    total_difference = unit.signed_number(story.step_ns[-1] - story.step_ns[0])
    rows.append(Row(("total", "", total_difference, "", _interval(story.overall)), kind="total"))
    header = ("", f"{unit.unit} per step", "difference", "speed-up over previous", "over first")
    caption = "Speed-ups with 95 % interval; the differences sum to the last row."
    return TableBlock(header=header, rows=tuple(rows), caption=caption)


def _interval(change: Comparison) -> str:
    return f"{ratio(change.ratio)}, {ratio_range(change.ratio_low, change.ratio_high)}"


def _parts(story: Story) -> TableBlock:
    """Return each part of the compared step times, with a column per run."""
    columns = [story.changes[0].parts, *(change.parts for change in story.changes)]
    values = [
        {part.key: part.before_ns if index == 0 else part.after_ns for part in column}
        for index, column in enumerate(columns)
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
    caption = "The parts sum to the step times above."
    names = (side.name for side in story.sides)
    return TableBlock(header=(f"{unit.unit} per step", *names), rows=tuple(rows), caption=caption)
