"""Measure what a fix gains: run the cell for some seconds with and without it, alternately, on copies."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from gpulab.comparison import Comparison
from gpulab.errors import CaptureError
from gpulab.rules import Diagnosis, Finding
from gpulab.rules.engine.pasted_names import can_be_tried, fixes_to_try
from gpulab.run import Run
from gpulab.trial.cell_runner import CellRunner, parse_cell
from gpulab.trial.fix_placement import names_read, place_fix
from gpulab.trial.object_copies import ObjectCopies
from gpulab.trial.placed_fix import PlacedFix
from gpulab.trial.program_code import ProgramCode
from gpulab.trial.refusal import COMPARE_YOURSELF
from gpulab.trial.rounds import Quiet, Rounds, Variant
from gpulab.views.compare.comparison import comparison_blocks
from gpulab.views.sheet.sheet import Block, Code, Facts, Section, Sheet
from gpulab.views.sheet.view import View
from gpulab.wording import count, did_you_mean, duration, number, shell_word

SECONDS, REPEATS = 3.0, 3
_OTHER_STEP = 1.5  # times as long, or as short, as in the recording: the prediction was made for another loop


@dataclass(frozen=True, eq=False, repr=False)
class Trial(View):
    """The result of a trial: a comparison of the cell without and with the fix."""

    comparison: Comparison
    finding: Finding
    unchanged: tuple[Run, ...]
    fixed: tuple[Run, ...]


def require_times_of_this_machine(run: Run) -> None:
    """Raise CaptureError if the times of a run were not measured here, so that a trial does not apply to it."""
    if run.source.how != "measured":
        raise CaptureError(
            f"The fix for {run.name!r} cannot be tried.",
            why="its times are not those of this machine",
            fix="%gpuwhatif predicts changes of any run",
        )


def finding_to_try(diagnosis: Diagnosis, rule: str | None = None) -> Finding:
    """Return the first finding that predicts a gain by code, or that of a rule.

    Raises CaptureError if there is none.
    """
    run = diagnosis.run
    require_times_of_this_machine(run)
    findings = [each for each in diagnosis.findings if rule in (None, each.rule)]
    if not findings:
        raise CaptureError(
            f"The run {run.name!r} has no finding{f' {rule!r}' if rule else ''}.",
            why=f"its findings are {', '.join(each.rule for each in diagnosis.findings) or 'none'}",
            fix=did_you_mean(rule or "", (each.rule for each in diagnosis.findings))
            or f"show its report: %gpureport {shell_word(run.name)}",
        )
    for finding in findings:
        if rule is not None and can_be_tried(finding):
            return finding
        if fixes := fixes_to_try(finding):
            return fixes[0]
    raise CaptureError(
        f"The fix for {findings[0].rule} cannot be tried automatically.",
        why="it is code that your loop must call" if findings[0].fix else "it is advice, not code",
        fix=COMPARE_YOURSELF,
    )


def try_fix(
    finding: Finding,
    cell: str,
    namespace: dict[str, Any],
    *,
    name: str = "before",
    seconds: float = SECONDS,
    repeats: int = REPEATS,
    quiet: Quiet = contextlib.nullcontext,
) -> Trial:
    """Run a cell `repeats` times without and with the fix of a finding, alternately, and compare.

    If the times differ by 10 % and the result is not clear, both run two more times.

    `cell`: Python code. `namespace`: its variables; the code runs on copies of those it uses, and all are restored.
    `seconds`: how long each run lasts after its first steps. `quiet`: a context that hides the output of the cell.
    The last runs are gpulab.runs["NAME.unchanged"] and ["NAME.fixed"]. Raises CaptureError if the cell or the fix
    cannot be run in this way.
    """
    tree = parse_cell(cell)
    fix = place_fix(tree, finding, namespace)
    runner = CellRunner(ObjectCopies(names_read(fix.cell) | names_read(tree), namespace), namespace, seconds, quiet)
    variant = Variant(name="fixed", finding=finding, code=ProgramCode(fix.cell))
    tried = Rounds(runner, name, ProgramCode(tree), repeats).tried([variant])[0]
    if tried.comparison is None:
        assert tried.error is not None
        raise tried.error
    comparison = tried.comparison
    unchanged, fixed = (tuple(diagnosis.run for diagnosis in side.runs) for side in comparison.sides)
    facts = (*_facts(finding, fix, seconds, len(fixed)), *runner.effects)
    return Trial(
        Sheet(
            f"gpulab: a trial of the fix for {finding.label}",
            (*comparison_blocks(comparison, (Facts((*facts, *_changed_since(finding, comparison))),)), *_code(finding)),
        ),
        comparison=comparison,
        finding=finding,
        unchanged=unchanged,
        fixed=fixed,
    )


def _code(finding: Finding) -> tuple[Block, ...]:
    """Return the code of a remedy that the report does not print."""
    return (Section(f"Code for {finding.label}", (Code(finding.fix),)),) if finding.alternative and finding.fix else ()


def _changed_since(finding: Finding, comparison: Comparison) -> tuple[tuple[str, str], ...]:
    """Return that the unchanged cell now takes another time than in the recording, if it does: see `_OTHER_STEP`."""
    if finding.gain is None or comparison.before_ns <= 0:
        return ()
    change = finding.gain.step_ns / comparison.before_ns
    if max(change, 1 / change) < _OTHER_STEP:
        return ()
    why = (
        f"without the fix, a step takes {duration(comparison.before_ns)} now and took {duration(finding.gain.step_ns)} "
        "in the recording, so that the prediction does not apply. Possible reasons: other programs, a setting of the "
        "process that has changed (such as its threads), or a fix that is already applied. Record the cell again"
    )
    return (("not as recorded", why),)


def _facts(finding: Finding, fix: PlacedFix, seconds: float, repeats: int) -> tuple[tuple[str, str], ...]:
    return (
        ("trial", f"{count(repeats, 'run')} of each variant, alternating, {number(seconds)} s each, on copies"),
        ("fix", fix.place_in("cell") if fix.settings else f"the code for {finding.label}, {fix.place_in('cell')}"),
    )
