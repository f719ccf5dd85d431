"""Two runs compared: the ratio of step times, the parts that changed, findings, and predicted versus measured time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.ledger import Ledger
from gpulab.comparison import Comparison, Story
from gpulab.comparison.compared_prediction import ChangeEvidence
from gpulab.comparison.interval import Statistic
from gpulab.rules.engine.finding import Finding, Gain
from gpulab.views.compare.changes import usage_section, work_section
from gpulab.views.compare.crashes import crash_text
from gpulab.views.compare.run_sequence import StoryView, story_view
from gpulab.views.report.headline import expectation, expected_facts
from gpulab.views.report.ledger_table import ledger_bar
from gpulab.views.report.provenance import median_and_range, origin
from gpulab.views.sheet.sheet import Answer, Block, Facts, Line, Row, Section, Sheet, TableBlock
from gpulab.views.sheet.view import View
from gpulab.wording import count, duration, percent, ratio, ratio_range, scale, sentence

MAX_LISTED_RUNS = 6
_SUBJECTS = {
    Statistic.MEDIAN: "a step takes",
    Statistic.MEAN: "the mean step takes",
    Statistic.FASTEST: "a step takes, in the fastest 10 %,",
}


@dataclass(frozen=True, eq=False, repr=False)
class ComparisonView(View):
    """A comparison as a view."""

    comparison: Comparison


def comparison_view(compared: Comparison | Story, more_blocks: Sequence[Block] = ()) -> ComparisonView | StoryView:
    """Return the view of a comparison, or of several runs in a row; `more_blocks`: as for `comparison_blocks`."""
    if isinstance(compared, Story):
        return story_view(compared)
    names = " and ".join(side.name for side in compared.sides)
    return ComparisonView(Sheet(f"gpulab: {names} compared", comparison_blocks(compared, more_blocks)), compared)


def comparison_blocks(compared: Comparison, more_blocks: Sequence[Block] = ()) -> tuple[Block, ...]:
    """Return the blocks of a comparison; `more_blocks` follow the lines on the source of the numbers."""
    blocks: list[Block] = [_answer(compared), *_other_differences(compared)]
    blocks += [Line(sentence(text), soft=True) for text in _sources(compared)]
    blocks += more_blocks
    if compared.parts:
        blocks.append(Section("Where the step time goes", (*_bars(compared), _parts(compared))))
    if compared.parts or compared.resolved or compared.new or compared.remaining or compared.undecided:
        blocks.append(Section("Findings", (Facts(tuple(_findings(compared))),)))
    blocks += [section for section in (work_section(compared), usage_section(compared)) if section is not None]
    return tuple(blocks)


def _answer(compared: Comparison) -> Answer:
    before, after = (side.name for side in compared.sides)
    interval = f"95 % interval {ratio_range(compared.ratio_low, compared.ratio_high)}"
    kind = f"These steps ran {'with' if compared.profiled else 'without'} the profiler"
    evidence = (
        *(f"{side.name}: {_spread(compared, index)}." for index, side in enumerate(compared.sides)),
        f"Ratio of the {compared.statistic.value}s: {ratio(compared.ratio)}, {interval}. {kind}.",
    )
    times = (f'{duration(compared.before_ns)} in "{before}"', f'{duration(compared.after_ns)} in "{after}"')
    step_times = f"{_SUBJECTS[compared.statistic]} {' and '.join(times)}."
    return Answer(
        claim=f"{crash_text(compared.sides)}{comparison_verdict(compared)}: {step_times}{_same_work(compared)}",
        leading=True,
        evidence=evidence,
        advice=_reason(compared),
        facts=(*_outcome(compared), *_tested_change(compared), *expected_facts(compared.predicted)),
        expectation=expectation(compared.predicted, compared.measured_ns),
    )


def _same_work(compared: Comparison) -> str:
    """Return the speed for the same work, for a change that gives a step more or less of it; else ""."""
    work = compared.predicted.work_ratio if compared.predicted is not None else 1.0
    if work == 1 or not compared.conclusive or not compared.prediction.is_of_change:
        return ""
    is_clear = compared.ratio_low * work > 1 or compared.ratio_high * work < 1
    speed = f"{ratio(compared.ratio * work)} as fast" if is_clear else "as fast as before, within the noise"
    return f" A step does {ratio(work)} the work: the same work is done {speed}."


def comparison_verdict(compared: Comparison) -> str:
    """Return the result in a few words: faster, slower, no difference, or not judged."""
    if not compared.conclusive:
        return "No verdict"
    if not compared.above_noise:
        return "No difference above the noise"
    if compared.ratio >= 1:
        return f"{ratio(compared.ratio)} as fast"
    return f"Slower, {ratio(1 / compared.ratio)} the step time"


def _spread(compared: Comparison, index: int) -> str:
    runs_ns, steps_ns = compared.runs_ns[index], (compared.before_steps_ns, compared.after_steps_ns)[index]
    typical_ns = (compared.before_ns, compared.after_ns)[index]
    if len(runs_ns) == 1:
        median = median_and_range(steps_ns, compared.sides[index].typical.steps.burst)
        return median if compared.statistic is Statistic.MEDIAN else f"mean {duration(typical_ns)}, {median}"
    unit, statistic = scale(typical_ns), f"{compared.statistic.value}s"
    times = (
        ", ".join(map(unit.number, runs_ns))
        if len(runs_ns) <= MAX_LISTED_RUNS
        else unit.range(runs_ns.min(), runs_ns.max())
    )
    return f"{unit(typical_ns)} per step (mean of the {statistic} of {len(runs_ns)} runs: {times} {unit.unit})"


def _outcome(compared: Comparison) -> tuple[tuple[str, str], ...]:
    """Return the measured step time beside the predicted range; () without a prediction."""
    if compared.predicted is None:
        return ()
    unit = scale(compared.before_ns)
    span = f"{unit.number(compared.before_ns)} -> {unit(compared.after_ns)}"
    source = "Estimated" if compared.after.run.source.how == "virtual" else "Measured"
    why = f", because {compared.why}" if _explains_position(compared) else ""
    work = compared.predicted.work_ratio
    same_work = f"; {ratio(compared.ratio * work)} for the same work" if work != 1 else ""
    return ((f"{source} step time", f"{span} ({ratio(compared.ratio)}{same_work}): {_position(compared)}{why}"),)


def _reason(compared: Comparison) -> str:
    """Return why there is no verdict, or no difference."""
    return "" if _explains_position(compared) else sentence(compared.why)


def _explains_position(compared: Comparison) -> bool:
    return compared.predicted is not None and compared.above_noise and bool(compared.why)


def _position(compared: Comparison) -> str:
    """Compare the measured step with the predicted range, if the measurement is valid."""
    assert compared.predicted is not None
    if not compared.conclusive:
        return "not compared with the prediction"
    of_fix = "" if compared.prediction.is_of_change else " of that fix"
    if not compared.in_predicted_range:
        if not compared.above_noise and _may_be_in_range(compared, compared.predicted):
            return "too noisy to be compared with the prediction"
        return f"outside the predicted range{of_fix}"
    in_raw_range = compared.predicted.best_ns <= compared.measured_ns <= compared.predicted.worst_ns
    return f"inside the predicted range{of_fix}" + ("" if in_raw_range else ", allowing for noise")


def _may_be_in_range(compared: Comparison, predicted: Gain) -> bool:
    """Whether the 95 % interval of the measured step time overlaps the predicted range."""
    low_ns, high_ns = (compared.measured_ns * compared.ratio / end for end in (compared.ratio_high, compared.ratio_low))
    return low_ns <= predicted.worst_ns and high_ns >= predicted.best_ns


def _tested_change(compared: Comparison) -> tuple[tuple[str, str], ...]:
    """Return which change is predicted, and what shows that it was made; () if the caller named it."""
    prediction = compared.prediction
    changes = ", ".join(map(str, prediction.settings))
    finding = prediction.finding
    if prediction.evidence is ChangeEvidence.CALLER or (finding is None and not prediction.refusal and not changes):
        return ()
    if finding is None:
        predicted = f"; predicted as {prediction.rewrites}" if prediction.rewrites else ""
        change = (("Change", changes + predicted),) if changes else ()
        return change if predicted else (*change, ("No prediction to check", prediction.refusal))
    source = f"the fix of {_ordinal(compared, finding)} ({finding.rule})"
    if prediction.evidence is ChangeEvidence.SETTINGS:
        return (("Change", f"{changes}, as in {source}"),)
    if prediction.evidence is ChangeEvidence.RESOLVED:
        return (("Change", f"{source}, which is resolved; no recorded setting differs"),)
    assumed = f"if it is {source}, the prediction is as follows"
    return (("Change", f"unknown, because no recorded setting differs; {assumed}"),)


def _ordinal(compared: Comparison, finding: Finding) -> str:
    return "the first finding" if finding is compared.before.first else "a finding"


def _other_differences(compared: Comparison) -> Iterator[Block]:
    """Yield differences other than the code, or possible reasons why the prediction was wrong."""
    reasons, title = compared.circumstances, "Other differences"
    if compared.reasons and compared.above_noise:
        reasons, title = compared.reasons, "Possible reasons for the wrong prediction"
    unit = scale(compared.after_ns)
    rows = [Row((sentence(each.text), unit.signed_number(each.effect_ns))) for each in reasons]
    if rows:
        header = ("", f"estimated effect, {unit.unit}")
        yield Section(title, (TableBlock(header=header, rows=tuple(rows), caption=_effects(len(rows))),))


def _effects(number_of_reasons: int) -> str:
    """Say what an estimated effect means, and that the measured times include it."""
    rest = ", and the effects do not add up to the measured difference" if number_of_reasons > 1 else ""
    return f"An effect above zero makes the second run slower. The times above are not corrected for it{rest}."


def _sources(compared: Comparison) -> Iterator[str]:
    if compared.statistic is Statistic.FASTEST:
        yield "The fastest 10 % of the steps are compared, because medians vary more between repeated runs"
    once = all(len(side.runs) == 1 for side in compared.sides)
    if once:
        allowed = percent(compared.between_runs_frac, 1)
        yield f"The 95 % interval includes {allowed} at each end for differences between runs of the same program"
    for side, (excluded, total) in zip(compared.sides, compared.disturbed_steps, strict=True):
        if excluded:
            yield f"Excluded from {side.name}: {excluded} of {count(total, 'step')} during which other programs ran"
    yield from _times_in_reports(compared)
    for side in compared.sides:
        sources = {str(each.run.source) for each in side.runs}
        several = f"{count(len(side.runs), 'run')} of {side.name}: {'; '.join(sorted(sources))}"
        yield origin(side.runs[0].run) if len(side.runs) == 1 else several


def _times_in_reports(compared: Comparison) -> Iterator[str]:
    """Yield the step time in the report of a run, if it is another one: of other steps, or another statistic."""
    for side, compared_ns in zip(compared.sides, (compared.before_ns, compared.after_ns), strict=True):
        step, steps = side.typical.step, side.typical.steps
        if step is None or len(side.runs) > 1 or duration(step.step_ns) == duration(compared_ns):
            continue
        profiler = "with" if steps.unprofiled_ns is None else "without"
        kind = "mean of all steps" if step.is_mean else f"median of all steps {profiler} the profiler"
        yield f"The report of {side.name} has {duration(step.step_ns)} per step, the {kind}"


def _bars(compared: Comparison) -> Iterator[Block]:
    ledgers = [(side.name, _step(compared, index)) for index, side in enumerate(compared.sides)]
    longest_ns = max(int(ledger.step_ns[0]) for _, ledger in ledgers)
    for name, ledger in ledgers:
        step_ns = int(ledger.step_ns[0])
        yield ledger_bar(ledger, name, name=f"{name}: {duration(step_ns)}", length=step_ns / longest_ns)


def _step(compared: Comparison, index: int) -> Ledger:
    """Return the compared step time of one side as a ledger of one step."""
    example = compared.sides[index].ledgers[0]
    parts = {part.key: np.array([(part.before_ns, part.after_ns)[index]]) for part in compared.parts}
    return Ledger(example.device, example.parts, np.array([sum(parts.values())]).reshape(1), parts, {})


def _parts(compared: Comparison) -> TableBlock:
    """Return each part before and after; the differences sum to the difference of the step times."""
    totals = [sum(part.before_ns for part in compared.parts), sum(part.after_ns for part in compared.parts)]
    unit = scale(max(totals), figures=4)
    rows = [
        Row(
            (
                part.label,
                unit.number(part.before_ns),
                unit.number(part.after_ns),
                unit.signed_number(part.difference_ns),
            ),
            part.key,
        )
        for part in compared.parts
        if part.before_ns or part.after_ns
    ]
    rows.append(Row(("step", *map(unit.number, totals), unit.signed_number(totals[1] - totals[0])), kind="total"))
    names = tuple(side.name for side in compared.sides)
    return TableBlock(
        header=(f"{unit.unit} per step", *names, "difference"), rows=tuple(rows), caption=_caption(compared)
    )


def _caption(compared: Comparison) -> str:
    counts = [sum(len(ledger.step_ns) for ledger in side.ledgers) for side in compared.sides]
    runs = max(len(side.ledgers) for side in compared.sides)
    repeats = f" in {runs} runs each" if runs > 1 else ""
    return f"The parts sum to the step times above (from {counts[0]} and {counts[1]} complete steps{repeats})."


def _findings(compared: Comparison) -> Iterator[tuple[str, str]]:
    groups = (("resolved", compared.resolved), ("new", compared.new), ("remaining", compared.remaining))
    if not compared.resolved and not compared.remaining:
        yield "resolved", "none"
    for name, findings in groups:
        for finding in findings:
            yield name, f"{sentence(finding.claim)}{_share_before(compared, finding) if name == 'remaining' else ''}"
    if compared.resolved and not compared.remaining:
        yield "remaining", "none"
    for finding in compared.undecided:
        yield "unknown", f"{sentence(finding.claim)} {_why_undecided(compared, finding)}"


def _why_undecided(compared: Comparison, finding: Finding) -> str:
    is_gone = any(finding is each for each in compared.sides[0].findings)
    crashed = compared.sides[1 if is_gone else 0].name
    state = "gone" if is_gone else "new"
    return f"It was not found in {crashed}, which crashed, so it is not known whether it is {state}."


def _share_before(compared: Comparison, finding: Finding) -> str:
    """Return which share of a step a remaining cause took before, if that is known on both sides."""
    earlier = compared.before_of(finding)
    share = None if earlier is None else earlier.numbers.get("exposed_frac")
    if earlier is None or share is None or finding.numbers.get("exposed_frac") is None:
        return ""
    name = "" if earlier.rule == finding.rule else f" ({earlier.rule})"
    return f" Before the change, the share was {percent(share)}{name}."
