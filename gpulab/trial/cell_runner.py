"""Run variants of a cell for some seconds, on copies of the user's objects, and record them."""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any

from gpulab.analysis.steps.detection import Steps, find_steps
from gpulab.capture.protection.guard import error_text
from gpulab.capture.seeds import synchronize_gpus
from gpulab.capture.session import Session
from gpulab.errors import CaptureError
from gpulab.run import Run
from gpulab.trial.effects.file_guard import FileGuard
from gpulab.trial.object_copies import ObjectCopies
from gpulab.trial.preserved_state import preserved_settings, preserved_variables
from gpulab.trial.program_code import ProgramCode
from gpulab.trial.refusal import COMPARE_YOURSELF
from gpulab.trial.timed_run import MAX_STARTUP_S, TimedRun
from gpulab.wording import count, duration

_MIN_STEPS = 8  # after the warm-up, in each run
_MIN_BURSTS = 5  # groups of batches that workers deliver together: the first are loaded in advance


def parse_cell(cell: str) -> ast.Module:
    """Return the code of a cell. Raises CaptureError if it cannot run outside the notebook."""
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


class CellRunner:
    """Runs variants of a cell, with the output hidden and all variables restored."""

    isolation = "on copies of the variables"

    def __init__(
        self,
        copies: ObjectCopies,
        namespace: dict[str, Any],
        seconds: float,
        quiet: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.refused: list[str] = []
        self._copies, self._namespace, self._seconds, self._quiet = copies, namespace, seconds, quiet

    @property
    def effects(self) -> tuple[tuple[str, str], ...]:
        """What the cell was not allowed to do, as labelled lines."""
        return (("refused", "; ".join(self.refused)),) if self.refused else ()

    def record(self, program: ProgramCode, name: str, fix_for: str = "") -> Run:
        """Run a variant and return its recording. Raises CaptureError if it fails, or if no step is detected.

        `fix_for`: the fix that the variant contains; "" for the unchanged cell.
        """
        code = compile(program.main, "<cell>", "exec")
        session = Session(name, level="sensors")
        session.start()
        try:
            ended_early = self._run(code, session, fix_for)
        except BaseException:
            session.abandon()
            raise
        run = session.stop()
        gc.collect()  # ends the workers of its DataLoaders
        steps = find_steps(run)
        if int(steps.unprofiled.sum()) < least_steps(steps):
            raise too_short(steps, program.noun, longer_s=3 * self._seconds if ended_early else None)
        return run

    def _run(self, code: CodeType, session: Session, fix_for: str) -> bool:
        """Run a variant; return whether its time ran out before its end."""
        timed, guard = TimedRun(self._seconds, lambda: session.live().steps), FileGuard()
        try:
            with (
                self._quiet(),
                preserved_settings(),
                preserved_variables(self._namespace, self._copies.restore()),
                guard.active(self._namespace),
            ):
                timed.run(lambda: self._execute(code))
        except (Exception, SystemExit) as error:  # the cell may raise anything
            raise _failure(error, fix_for, guard) from None
        self.refused += [action for action in guard.refused if action not in self.refused]
        if timed.without_steps:
            raise CaptureError(
                "The trial was stopped.",
                why=f"no step was detected within {duration(MAX_STARTUP_S * 1e9)}",
                fix="move the preparation into another cell; in a loop without a DataLoader and an optimizer, call "
                "gpulab.step() at the end of each iteration",
            )
        return timed.ended_early

    def _execute(self, code: CodeType) -> None:
        exec(code, self._namespace)
        synchronize_gpus()


def least_steps(steps: Steps) -> int:
    """Return how many steps without the profiler a run needs for a comparison."""
    return max(_MIN_STEPS, 2 * steps.burst)


def too_short(steps: Steps, noun: str, longer_s: float | None) -> CaptureError:
    """Return the error for a run with fewer steps. `longer_s`: seconds that may be enough; None if it ended itself."""
    complete = count(int(steps.unprofiled.sum()), "complete step")
    least = max(12, _MIN_BURSTS * steps.burst)
    workers = (
        f" that can be compared, of {len(steps)}: {steps.burst} workers deliver batches in groups of "
        f"{steps.burst}, and those of the first steps are loaded in advance"
    )
    run_again = "run again on copies of your variables, the cell" if noun == "cell" else f"the {noun}"
    counters = ", and create what it counts in the cell itself" if noun == "cell" else ""
    return CaptureError(
        "The trial measured too little.",
        why=f"{run_again} had {complete}{workers * (steps.burst > 1)}",
        fix=f"let its loop run for at least {least} steps{counters}"
        if longer_s is None
        else f"try for longer: --seconds {longer_s:g}",
    )


def _failure(error: BaseException, fix_for: str, guard: FileGuard) -> CaptureError:
    if guard.refused:
        return CaptureError(
            "This cell cannot be tried.",
            why=f"a trial must have no effects, and the cell tries to {guard.refused[0]}",
            fix=f"take this out of the cell, or {COMPARE_YOURSELF}",
        )
    return CaptureError(
        "The cell failed " + (f"with the fix for {fix_for}." if fix_for else "in a trial without the fix."),
        why=error_text(error),
        fix="adapt the fix to your code" if fix_for else COMPARE_YOURSELF,
    )
