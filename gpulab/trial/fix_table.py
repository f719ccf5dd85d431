"""The result of trying all fixes as a sheet: the best one with its code, a table of all, and what was not tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpulab.rules import Diagnosis
from gpulab.trial.rounds import Runner
from gpulab.trial.tried_fix import TriedFix
from gpulab.views.sheet.sheet import Answer, Block, Code, Facts, Line, Row, Section, Sheet, TableBlock
from gpulab.wording import count, duration, number, plural, ratio, ratio_range, sentence

_CLEARLY_FASTER = 1.03  # the fixes together, in comparison with the fastest one


def all_fixes_sheet(
    diagnosis: Diagnosis,
    fixes: Sequence[TriedFix],
    together: TriedFix | None,
    *,
    seconds: float,
    repeats: int,
    noun: str,
    runner: Runner,
) -> Sheet:
    """Return the sheet. `fixes`: the fastest first. `noun`: what was run, a cell or a script. `runner`: what ran it."""
    best = best_of(fixes, together)
    blocks: list[Block] = [_answer(fixes, best, together, noun)]
    if any(fix.comparison for fix in fixes):
        blocks.append(_table(fixes, together, noun))
    blocks.append(Facts(tuple(_facts(seconds, repeats, runner))))
    not_tried = tuple(_not_tried(diagnosis, [*fixes, *([together] if together else [])]))
    if not_tried:
        blocks.append(Section("Not tried", (Facts(not_tried),)))
    others = [fix for fix in fixes if fix.helps and fix is not best]
    if others and best is not together:
        code = [block for fix in others for block in _code(fix)]
        blocks.append(Section("Code of the other fixes that help", tuple(code), folded=True))
    return Sheet(f"gpulab: trials of all fixes for {diagnosis.run.name}", tuple(blocks))


def _code(fix: TriedFix) -> Iterator[Block]:
    yield Line(f"{fix.finding.label}:")
    yield Code(fix.finding.fix) if fix.finding.fix else Line(fix.finding.advice)


def best_of(fixes: Sequence[TriedFix], together: TriedFix | None) -> TriedFix | None:
    """Return the fastest fix that helps, or all of them together if that is clearly faster; None if none helps."""
    fastest = next((fix for fix in fixes if fix.helps), None)
    if fastest is None or together is None or not together.helps:
        return fastest
    return together if together.speedup > _CLEARLY_FASTER * fastest.speedup else fastest


def _answer(fixes: Sequence[TriedFix], best: TriedFix | None, together: TriedFix | None, noun: str) -> Answer:
    if best is None or best.comparison is None:
        return Answer(claim=_none_helps(fixes, noun), leading=True)
    fix, compared = best.finding, best.comparison
    subject = f"The fixes for {fix.label}, together, make" if best is together else f"The fix for {fix.label} makes"
    return Answer(
        claim=f"{subject} the {noun} {ratio(best.speedup)} as fast{_same_work(best)}: a step takes "
        f"{duration(compared.after_ns)} with and {duration(compared.before_ns)} without.",
        leading=True,
        evidence=tuple(_evidence(fixes, best)),
        fix=fix.fix,
        advice=_advice(best, is_several=best is together),
    )


def _same_work(fix: TriedFix) -> str:
    return "" if fix.work_ratio == 1 else f" for the same work, with {ratio(fix.work_ratio)} the work in a step"


def _none_helps(fixes: Sequence[TriedFix], noun: str) -> str:
    tried = [fix for fix in fixes if fix.comparison]
    if not tried:
        return "No fix could be tried."
    unclear = next((fix.comparison for fix in tried if fix.comparison and not fix.comparison.conclusive), None)
    if unclear is not None:
        return f"No verdict on {count(len(tried), 'fix', 'fixes')}: {unclear.why}."
    if len(tried) == 1:
        return f"The fix for {tried[0].finding.label} does not make the {noun} faster, by more than the noise."
    return f"None of the {count(len(tried), 'fix', 'fixes')} makes the {noun} faster, by more than the noise."


def _evidence(fixes: Sequence[TriedFix], best: TriedFix) -> Iterator[str]:
    if best.comparison is not None:
        yield f"95 % interval {_interval(best)}."
    close = [fix.finding.label for fix in fixes if fix.helps and fix.interval[1] >= best.interval[0]]
    if best in fixes and len(close) > 1:
        yield f"The intervals of {' and '.join(close)} overlap: which one is fastest is not certain."


def _interval(fix: TriedFix) -> str:
    return ratio_range(*fix.interval)


def _advice(best: TriedFix, *, is_several: bool) -> str:
    """Return where the fix was in the trial, after the advice of a fix that is no code, and before its caveats."""
    place = "" if is_several else f"In the trial: {best.place}."
    advice = "" if best.finding.fix and not is_several else best.finding.advice
    return " ".join(filter(None, (advice, place, *best.finding.caveats)))


def _table(fixes: Sequence[TriedFix], together: TriedFix | None, noun: str) -> TableBlock:
    rows = [_row(fix, fix.finding.label) for fix in fixes if fix.comparison]
    if together is not None and together.comparison is not None:
        rows.append(_row(together, f"together: {together.finding.rule}", kind="total"))
    return TableBlock(
        header=("fix for", "result", "predicted", "measured", "95 % interval"),
        rows=tuple(rows),
        text_columns=2,
        caption=f"Speed-ups of the {noun}. A difference is clear if its 99 % interval excludes 1.00x.",
    )


def _row(fix: TriedFix, name: str, kind: str = "plain") -> Row:
    gain = fix.finding.gain
    predicted = "-" if gain is None else ratio_range(gain.worst_speedup, gain.best_speedup)
    return Row((name, _result(fix), predicted, ratio(fix.speedup), _interval(fix)), kind=kind)


def _result(fix: TriedFix) -> str:
    compared = fix.comparison
    if compared is None or not compared.conclusive:
        return "no verdict"
    if not fix.is_clear:
        return "no clear difference"
    speed = "faster" if fix.speedup >= 1 else "slower"
    gain = fix.finding.gain
    if gain is None:
        return speed
    if not compared.in_predicted_range:
        return f"{speed}, outside the range"
    is_inside = gain.worst_speedup <= fix.speedup <= gain.best_speedup
    return f"{speed}, in the range" if is_inside else f"{speed}, in the range within noise"


def _facts(seconds: float, repeats: int, runner: Runner) -> Iterator[tuple[str, str]]:
    runs = f"{count(repeats, 'run')} of each variant in turn, {number(seconds)} {plural(seconds, 'second')} each"
    yield "trial", f"{runs}, {runner.isolation}"
    yield from runner.effects


def _not_tried(diagnosis: Diagnosis, fixes: Sequence[TriedFix]) -> Iterator[tuple[str, str]]:
    for fix in fixes:
        if fix.error is not None:
            yield fix.finding.label, f"{fix.error.problem} {sentence(fix.error.why)}"
    tried = {fix.finding.rule for fix in fixes}
    for finding in diagnosis.findings:
        if finding.rule not in tried and finding.gain is not None:
            yield finding.rule, "Code that your loop must call." if finding.fix else "Advice, not code."
