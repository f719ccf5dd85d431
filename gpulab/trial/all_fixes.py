"""Measure the fixes of all findings: the program runs with each one in turn, then with all that help together."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpulab.errors import CaptureError
from gpulab.rules import Diagnosis, Finding
from gpulab.rules.engine.pasted_names import fixes_to_try
from gpulab.rules.engine.phrases import sentences
from gpulab.trial.cell_runner import CellRunner, parse_cell
from gpulab.trial.fix_placement import names_read, replaced_names
from gpulab.trial.fix_table import all_fixes_sheet
from gpulab.trial.fix_trial import require_times_of_this_machine
from gpulab.trial.object_copies import ObjectCopies
from gpulab.trial.program_code import ProgramCode
from gpulab.trial.rounds import Quiet, Rounds, Runner, Variant
from gpulab.trial.tried_fix import TriedFix
from gpulab.views.sheet.view import View
from gpulab.wording import shell_word

SECONDS, REPEATS = 2.0, 3


@dataclass(frozen=True, eq=False, repr=False)
class AllFixes(View):
    """The measured gain of each fix of a diagnosis that is code."""

    fixes: tuple[TriedFix, ...]  # the fastest first; those that could not be tried last
    together: TriedFix | None  # all that help; None for fewer than two


def findings_to_try(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    """Return the findings whose fixes can be tried, in the order of the report. Raises CaptureError if none can."""
    require_times_of_this_machine(diagnosis.run)
    findings = tuple(fix for finding in diagnosis.findings for fix in fixes_to_try(finding))
    if not findings:
        reason = "its findings are advice, not code" if diagnosis.findings else "it has no finding"
        raise CaptureError(
            f"The run {diagnosis.run.name!r} has no fix that can be tried.",
            why=reason,
            fix=f"show its report: %gpureport {shell_word(diagnosis.run.name)}",
        )
    return findings


def try_all_fixes(
    diagnosis: Diagnosis,
    cell: str,
    namespace: dict[str, Any],
    *,
    seconds: float = SECONDS,
    repeats: int = REPEATS,
    quiet: Quiet = contextlib.nullcontext,
) -> AllFixes:
    """Run a cell `repeats` times unchanged and with each fix, in turn; then with all fixes that help together.

    `diagnosis`: of the run of this cell. `cell`: Python code. `namespace`: its variables; the code runs on copies of
    those it uses, and all are restored. `seconds`: how long each run lasts after its first steps. `quiet`: a context
    that hides the output of the cell. The last runs are gpulab.runs["NAME.unchanged"], ["NAME.RULE"] (of another
    remedy ["NAME.RULE.REMEDY"]) and ["NAME.together"].

    A fix that cannot be placed, or that fails, is listed with the reason. Raises CaptureError if no finding has code,
    or if the unchanged cell cannot be run in this way.
    """
    return measured_fixes(
        diagnosis,
        findings_to_try(diagnosis),
        ProgramCode(parse_cell(cell)),
        namespace,
        lambda codes: CellRunner(
            ObjectCopies(set().union(*(names_read(code.main) for code in codes)), namespace), namespace, seconds, quiet
        ),
        seconds=seconds,
        repeats=repeats,
    )


def measured_fixes(
    diagnosis: Diagnosis,
    findings: Sequence[Finding],
    program: ProgramCode,
    namespace: dict[str, Any],
    new_runner: Callable[[Sequence[ProgramCode]], Runner],
    *,
    seconds: float,
    repeats: int,
) -> AllFixes:
    """Run a program `repeats` times unchanged and with each of these fixes, in turn; then with all that help together.

    `new_runner`: creates what runs the program, unchanged and with a fix. For the rest, see `try_all_fixes`.
    """
    variants, without = list[Variant](), list[TriedFix]()
    for finding in findings:
        work_ratio = finding.gain.work_ratio if finding.gain else 1.0
        try:
            code, place = program.with_fix(finding, namespace)
        except CaptureError as error:
            without.append(TriedFix(finding=finding, error=error))
        else:
            name = ".".join(filter(None, (finding.rule, finding.alternative)))
            variants.append(Variant(name=name, finding=finding, code=code, place=place, work_ratio=work_ratio))
    runner = new_runner([program, *(variant.code for variant in variants)])
    rounds = Rounds(runner, diagnosis.run.name, program, repeats)
    fixes = tuple(sorted([*rounds.tried(variants), *without], key=_order))
    joint = _joint_variant(program, [fix for fix in fixes if fix.helps], namespace)
    together = rounds.tried([joint])[0] if joint else None
    sheet = all_fixes_sheet(
        diagnosis, fixes, together, seconds=seconds, repeats=repeats, noun=program.noun, runner=runner
    )
    return AllFixes(sheet, fixes=fixes, together=together)


def _order(fix: TriedFix) -> tuple[bool, float]:
    return fix.comparison is None, -fix.speedup


def _labelled_code(fix: TriedFix) -> str:
    """Return the code of one of several fixes, below a comment that says which one it is, and where it was."""
    place = f", {fix.place}" if fix.place else ""
    return f"# {fix.finding.label}{place}:\n{fix.finding.fix}"


def _joint_variant(program: ProgramCode, fixes: list[TriedFix], namespace: dict[str, Any]) -> Variant | None:
    """Return the program with all these fixes, without those that replace the object of a faster one; None for one."""
    code, replaced, used = program, set[str](), list[TriedFix]()
    for fix in fixes:
        changed = replaced_names(fix.finding.fix)
        if changed & replaced or fix.finding.rule in {each.finding.rule for each in used}:
            continue
        with contextlib.suppress(CaptureError):  # it cannot follow the others: it is in the table, measured alone
            code, _ = code.with_fix(fix.finding, namespace)
            used.append(fix)
            replaced |= changed
    if len(used) < 2:
        return None
    findings = [fix.finding for fix in used]
    finding = replace(
        findings[0],
        rule=" + ".join(each.label for each in findings),
        alternative="",
        fix="\n\n".join(_labelled_code(fix) for fix in used if fix.finding.fix),
        advice=sentences(*(each.advice for each in findings if not each.fix)),
        gain=None,
    )
    work_ratio = math.prod(fix.work_ratio for fix in used)
    return Variant(name="together", finding=finding, code=code, work_ratio=work_ratio)
