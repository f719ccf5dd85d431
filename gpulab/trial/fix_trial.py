"""Measure what a fix gains: run the cell for some seconds with and without it, alternately, on copies."""

from __future__ import annotations

import ast
import contextlib
import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

from gpulab.analysis.steps.detection import Steps, find_steps
from gpulab.capture.protection.guard import error_text
from gpulab.capture.session import Session
from gpulab.comparison import Comparison
from gpulab.errors import CaptureError
from gpulab.questions import compare
from gpulab.rules import Diagnosis, Finding
from gpulab.rules.engine.pasted_names import acts_when_pasted
from gpulab.run import Run
from gpulab.trial.file_guard import FileGuard
from gpulab.trial.fix_placement import names_read, place_fix
from gpulab.trial.object_copies import ObjectCopies
from gpulab.trial.refusal import COMPARE_YOURSELF
from gpulab.trial.timed_run import MAX_STARTUP_S, TimedRun, preserved_settings, preserved_variables
from gpulab.views.compare.comparison import comparison_blocks
from gpulab.views.sheet.sheet import Facts, Sheet
from gpulab.views.sheet.view import View
from gpulab.wording import count, did_you_mean, duration, number, shell_word

SECONDS, REPEATS = 3.0, 3
_MORE_REPEATS = 2  # if the runs differ without a clear result: other programs may have disturbed one
_UNCLEAR_DIFFERENCE = 1.1  # a smaller ratio of the step times is not worth more runs
_OTHER_STEP = 1.5  # times as long, or as short, as in the recording: the prediction was made for another loop
_MIN_STEPS = 8  # after the warm-up, in each run
_MIN_BURSTS = 5  # groups of batches that workers deliver together: the first are loaded in advance


@dataclass(frozen=True, eq=False, repr=False)
class Trial(View):
    """The result of a trial: a comparison of the cell without and with the fix."""

    comparison: Comparison
    finding: Finding
    unchanged: tuple[Run, ...]
    fixed: tuple[Run, ...]


def finding_to_try(diagnosis: Diagnosis, rule: str | None = None) -> Finding:
    """Return the first finding that predicts a gain by code, or that of a rule.

    Raises CaptureError if there is none.
    """
    run = diagnosis.run
    if run.source.how != "measured":
        raise CaptureError(
            f"The fix for {run.name!r} cannot be tried.",
            why="its times are not those of this machine",
            fix="%gpuwhatif predicts changes of any run",
        )
    findings = [each for each in diagnosis.findings if rule in (None, each.rule)]
    if not findings:
        raise CaptureError(
            f"The run {run.name!r} has no finding{f' {rule!r}' if rule else ''}.",
            why=f"its findings are {', '.join(each.rule for each in diagnosis.findings) or 'none'}",
            fix=did_you_mean(rule or "", (each.rule for each in diagnosis.findings))
            or f"show its report: %gpureport {shell_word(run.name)}",
        )
    for finding in findings:
        if acts_when_pasted(finding.fix) and (rule is not None or finding.gain is not None):
            return finding
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
    quiet: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Trial:
    """Run a cell `repeats` times without and with the fix of a finding, alternately, and compare.

    If the times differ by 10 % and the result is not clear, both run two more times.

    `cell`: Python code. `namespace`: its variables; the code runs on copies of those it uses, and all are restored.
    `seconds`: how long each run lasts after its first steps. `quiet`: a context that hides the output of the cell.
    The last runs are gpulab.runs["NAME.unchanged"] and ["NAME.fixed"]. Raises CaptureError if the cell or the fix
    cannot be run in this way.
    """
    tree = _parse(cell)
    placed = place_fix(tree, finding.fix, namespace)
    variants = {"unchanged": compile(tree, "<cell>", "exec"), "fixed": compile(placed.cell, "<cell>", "exec")}
    copies = ObjectCopies(names_read(placed.cell) | names_read(tree), namespace)
    runner = _Runner(copies, namespace, seconds, quiet)
    runs: dict[str, list[Run]] = {variant: [] for variant in variants}
    for planned in (repeats, repeats + _MORE_REPEATS) if repeats > 1 else (repeats,):
        while len(runs["fixed"]) < planned:
            for variant, code in variants.items():
                run = runner.record(code, f"{name}.{variant}", variant)
                runs[variant].append(replace(run, name=f"{variant} {len(runs[variant]) + 1}"))
        comparison = compare(runs["unchanged"], runs["fixed"], predicted=finding.gain)
        if not _is_unclear(comparison):
            break
    facts = _facts(finding, placed.line, seconds, planned, runner.refused)
    return Trial(
        Sheet(
            f"gpulab: a trial of the fix for {finding.rule}",
            comparison_blocks(comparison, (Facts((*facts, *_changed_since(finding, comparison))),)),
        ),
        comparison=comparison,
        finding=finding,
        unchanged=tuple(runs["unchanged"]),
        fixed=tuple(runs["fixed"]),
    )


def _is_unclear(comparison: Comparison) -> bool:
    difference = max(comparison.ratio, 1 / comparison.ratio)
    return not (comparison.above_noise and comparison.conclusive) and difference >= _UNCLEAR_DIFFERENCE


def _parse(cell: str) -> ast.Module:
    problem = ""
    try:
        tree = ast.parse(cell)
        compile(tree, "<cell>", "exec")
    except SyntaxError as error:
        problem = f"it does not compile as plain Python: {error.msg}"
    else:
        if any(isinstance(node, ast.Name) and node.id == "get_ipython" for node in ast.walk(tree)):
            problem = "it contains magics or shell commands, which would run on your own variables"
    if problem:
        raise CaptureError("This cell cannot be tried.", why=problem, fix=COMPARE_YOURSELF)
    return tree


class _Runner:
    """Runs the variants of a cell."""

    def __init__(
        self,
        copies: ObjectCopies,
        namespace: dict[str, Any],
        seconds: float,
        quiet: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.refused: list[str] = []
        self._copies, self._namespace, self._seconds, self._quiet = copies, namespace, seconds, quiet

    def record(self, code: CodeType, name: str, variant: str) -> Run:
        """Run a variant and return its recording. Raises CaptureError if it fails, or if no step is detected."""
        session = Session(name, level="sensors")
        session.start()
        try:
            ended_early = self._run(code, session, variant)
        except BaseException:
            session.abandon()
            raise
        run = session.stop()
        gc.collect()  # ends the workers of its DataLoaders
        steps = find_steps(run)
        if int(steps.unprofiled.sum()) < max(_MIN_STEPS, 2 * steps.burst):
            raise self._too_short(steps, ended_early)
        return run

    def _too_short(self, steps: Steps, ended_early: bool) -> CaptureError:
        complete = count(int(steps.unprofiled.sum()), "complete step")
        least = max(12, _MIN_BURSTS * steps.burst)
        workers = (
            f" that can be compared, of {len(steps)}: {steps.burst} workers deliver batches in groups of "
            f"{steps.burst}, and those of the first steps are loaded in advance"
        )
        return CaptureError(
            "The trial measured too little.",
            why=f"run again on copies of your variables, the cell had {complete}{workers * (steps.burst > 1)}",
            fix=f"try for longer: --seconds {3 * self._seconds:g}"
            if ended_early
            else f"let its loop run for at least {least} steps, and create what it counts in the cell itself",
        )

    def _run(self, code: CodeType, session: Session, variant: str) -> bool:
        """Run a variant; return whether its time ran out before its end."""
        timed, guard = TimedRun(self._seconds, lambda: session.live().steps), FileGuard()
        try:
            with (
                self._quiet(),
                preserved_settings(),
                preserved_variables(self._namespace, self._copies.restore()),
                guard.active(self._namespace),
            ):
                timed.run(code, self._namespace)
        except (Exception, SystemExit) as error:  # the cell may raise anything
            raise _failure(error, variant, guard) from None
        self.refused += [action for action in guard.refused if action not in self.refused]
        if timed.without_steps:
            raise CaptureError(
                "The trial was stopped.",
                why=f"no step was detected within {duration(MAX_STARTUP_S * 1e9)}",
                fix="move the preparation into another cell; in a loop without a DataLoader and an optimizer, call "
                "gpulab.step() at the end of each iteration",
            )
        return timed.ended_early


def _failure(error: BaseException, variant: str, guard: FileGuard) -> CaptureError:
    if guard.refused:
        return CaptureError(
            "This cell cannot be tried.",
            why=f"a trial must have no effects, and the cell tries to {guard.refused[0]}",
            fix=f"take this out of the cell, or {COMPARE_YOURSELF}",
        )
    return CaptureError(
        "The cell failed " + ("with the fix." if variant == "fixed" else "in a trial without the fix."),
        why=error_text(error),
        fix="adapt the fix to your code" if variant == "fixed" else COMPARE_YOURSELF,
    )


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


def _facts(
    finding: Finding, line: int, seconds: float, repeats: int, refused: list[str]
) -> tuple[tuple[str, str], ...]:
    place = f"after line {line} of the cell" if line else "at the start of the cell"
    rows = [
        ("trial", f"{count(repeats, 'run')} of each variant, alternating, {number(seconds)} s each, on copies"),
        ("fix", f"the code for {finding.rule}, inserted {place}"),
    ]
    return (*rows, ("refused", "; ".join(refused))) if refused else tuple(rows)
