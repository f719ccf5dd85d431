"""Measure the fixes of all findings: the cell runs with each one in turn, then with all that help together."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gpulab.comparison import Comparison
from gpulab.errors import CaptureError
from gpulab.questions import compare
from gpulab.rules import Diagnosis, Finding
from gpulab.rules.engine.phrases import sentences
from gpulab.run import Run
from gpulab.trial.cell_runner import CellRunner, parse_cell
from gpulab.trial.fix_placement import PlacedFix, names_read, placed, replaced_names
from gpulab.trial.fix_table import all_fixes_sheet
from gpulab.trial.fix_trial import has_code, require_times_of_this_machine
from gpulab.trial.object_copies import ObjectCopies
from gpulab.trial.tried_fix import MORE_REPEATS, TriedFix, is_unclear
from gpulab.views.sheet.view import View
from gpulab.wording import shell_word

SECONDS, REPEATS = 2.0, 3
_UNCHANGED, _TOGETHER = "unchanged", "together"

Quiet = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, eq=False, repr=False)
class AllFixes(View):
    """The measured gain of each fix of a diagnosis that is code."""

    fixes: tuple[TriedFix, ...]  # the fastest first; those that could not be tried last
    together: TriedFix | None  # all that help; None for fewer than two


class _Variant(NamedTuple):
    finding: Finding
    fix: PlacedFix


def findings_with_code(diagnosis: Diagnosis) -> tuple[Finding, ...]:
    """Return the findings whose fixes can be tried, in the order of the report. Raises CaptureError if none can."""
    require_times_of_this_machine(diagnosis.run)
    findings = tuple(finding for finding in diagnosis.findings if has_code(finding))
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
    that hides the output of the cell. The last runs are gpulab.runs["NAME.unchanged"], ["NAME.RULE"] and
    ["NAME.together"].

    A fix that cannot be placed, or that fails, is listed with the reason. Raises CaptureError if no finding has code,
    or if the unchanged cell cannot be run in this way.
    """
    findings, tree = findings_with_code(diagnosis), parse_cell(cell)
    variants, refused = list[_Variant](), list[TriedFix]()
    for finding in findings:
        try:
            variants.append(_Variant(finding, placed(tree, finding, namespace)))
        except CaptureError as error:
            refused.append(TriedFix(finding, problem=error.why))
    names = names_read(tree).union(*(names_read(variant.fix.cell) for variant in variants))
    runner = CellRunner(ObjectCopies(names, namespace), namespace, seconds, quiet)
    unchanged = _Variant(findings[0], PlacedFix(tree))
    rounds = _Rounds(runner, diagnosis.run.name, unchanged, repeats)
    tried = [*rounds.tried(variants), *refused]
    fixes = tuple(sorted(tried, key=_order))
    together = _together(rounds, [fix for fix in fixes if fix.helps], cell, namespace)
    sheet = all_fixes_sheet(diagnosis, fixes, together, seconds=seconds, repeats=repeats, refused=runner.refused)
    return AllFixes(sheet, fixes=fixes, together=together)


def _order(fix: TriedFix) -> tuple[bool, float]:
    return fix.comparison is None, -fix.speedup


class _Rounds:
    """Runs variants of a cell in turn with the unchanged one, so that other programs slow all of them."""

    def __init__(self, runner: CellRunner, name: str, unchanged: _Variant, repeats: int) -> None:
        self._runner, self._name, self._unchanged, self._repeats = runner, name, unchanged, repeats

    def tried(self, variants: Sequence[_Variant], name: str = "") -> list[TriedFix]:
        """Return the comparison of each variant with the unchanged cell. `name`: of its run; by default, the rule."""
        unchanged, runs, problems = list[Run](), dict[str, list[Run]](), dict[str, str]()
        pending = list(variants)
        for more in (self._repeats, MORE_REPEATS if self._repeats > 1 else 0):
            for _ in range(more if pending else 0):
                unchanged.append(self._record(self._unchanged, _UNCHANGED, "", len(unchanged)))
                for variant in pending:
                    rule = variant.finding.rule
                    earlier = runs.setdefault(rule, [])
                    try:
                        earlier.append(self._record(variant, name or rule, rule, len(earlier)))
                    except CaptureError as error:
                        problems[rule] = f"{error.problem} {error.why}"
                pending = [variant for variant in pending if variant.finding.rule not in problems]
            pending = [
                variant for variant in pending if is_unclear(_compared(unchanged, runs[variant.finding.rule], variant))
            ]
        return [
            TriedFix(variant.finding, problem=problems[rule], place=variant.fix.place)
            if (rule := variant.finding.rule) in problems
            else TriedFix(
                variant.finding, comparison=_compared(unchanged, runs[rule], variant), place=variant.fix.place
            )
            for variant in variants
        ]

    def _record(self, variant: _Variant, name: str, fix_for: str, earlier: int) -> Run:
        code = compile(variant.fix.cell, "<cell>", "exec")
        run = self._runner.record(code, f"{self._name}.{name}", fix_for)
        return replace(run, name=f"{name} {earlier + 1}")


def _compared(unchanged: list[Run], fixed: list[Run], variant: _Variant) -> Comparison:
    return compare(unchanged, fixed, predicted=variant.finding.gain)


def _together(rounds: _Rounds, fixes: list[TriedFix], cell: str, namespace: dict[str, Any]) -> TriedFix | None:
    """Return the trial of all fixes that help, without those that replace the object of a faster one."""
    tree, replaced, used = parse_cell(cell), set[str](), list[Finding]()
    for fix in fixes:
        changed = replaced_names(fix.finding.fix)
        if changed & replaced:
            continue
        with contextlib.suppress(CaptureError):  # it cannot follow the others: it is in the table, measured alone
            tree = placed(tree, fix.finding, namespace).cell
            used.append(fix.finding)
            replaced |= changed
    if len(used) < 2:
        return None
    code = "\n\n".join(finding.fix for finding in used if finding.fix)
    advice = sentences(*(finding.advice for finding in used if not finding.fix))
    finding = replace(used[0], rule=" + ".join(finding.rule for finding in used), fix=code, advice=advice, gain=None)
    return rounds.tried([_Variant(finding, PlacedFix(tree))], _TOGETHER)[0]
