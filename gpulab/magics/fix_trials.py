"""%gpufix: trials of fixes in the user's notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from gpulab.capture.run_registry import runs
from gpulab.errors import CaptureError
from gpulab.questions import diagnose
from gpulab.questions.run_names import find_run
from gpulab.rules import Finding
from gpulab.run import Run
from gpulab.trial.all_fixes import REPEATS, AllFixes, findings_to_try, try_all_fixes
from gpulab.trial.all_fixes import SECONDS as ALL_FIXES_SECONDS
from gpulab.trial.fix_trial import SECONDS, Trial, finding_to_try, try_fix
from gpulab.wording import count, duration, shell_word

_MIN_SECONDS, _MAX_SECONDS = 0.2, 600.0


def try_fix_of(
    shell: InteractiveShell,
    cells: Mapping[str, str],
    name: str | None,
    rule: str | None,
    seconds: float | None,
    announce: Callable[[str], None],
) -> Trial:
    """Try the fix of a run; the cell's output is hidden. `cells`: the code of the profiled cells by name of their run.

    If the first finding cannot be tried, announce whose fix is tried.

    Raises UsageError for a wrong duration, RunError or CaptureError if the fix cannot be tried.
    """
    _require_valid(seconds)
    run = _run_of(cells, name)
    diagnosis = diagnose(run)
    finding, first = finding_to_try(diagnosis, rule), diagnosis.first
    code = _code_of(shell, cells, run)
    if rule is None and first is not None and first is not finding:
        announce(f"gpulab: {_instead(first)}, so that gpulab measures {_subject_of(finding, first)}.")
    trial = try_fix(finding, code, shell.user_ns, name=run.name, seconds=seconds or SECONDS, quiet=capture_output)
    runs.add(run)  # again, so that it stays the last one for magics without a name
    return trial


def try_all_fixes_of(
    shell: InteractiveShell,
    cells: Mapping[str, str],
    name: str | None,
    seconds: float | None,
    announce: Callable[[str], None],
) -> AllFixes:
    """Try the fixes of all findings of a run, and announce how long that takes; errors as `try_fix_of`."""
    _require_valid(seconds)
    run, run_s = _run_of(cells, name), seconds or ALL_FIXES_SECONDS
    diagnosis = diagnose(run)
    findings = findings_to_try(diagnosis)
    code = _code_of(shell, cells, run)
    least_s = REPEATS * run_s * (1 + len(findings))
    announce(
        f"gpulab: runs the cell unchanged and with {count(len(findings), 'fix', 'fixes')}, {REPEATS} times each "
        f"({', '.join(finding.label for finding in findings)}). This takes at least {duration(1e9 * least_s)}, often "
        "several times as long."
    )
    trials = try_all_fixes(diagnosis, code, shell.user_ns, seconds=run_s, quiet=capture_output)
    runs.add(run)
    return trials


def _instead(first: Finding) -> str:
    """Return why the fix of the first finding is not the one that is tried."""
    return f"the first fix, for {first.rule}, is {'code that your loop must call' if first.fix else 'advice, not code'}"


def _subject_of(finding: Finding, first: Finding) -> str:
    """Return what is tried instead: "another remedy for no_workers, cached"."""
    if finding.alternative and finding.rule == first.rule:
        return f"another remedy for {finding.rule}, {finding.alternative}"
    return f"the fix for {finding.label}"


def _require_valid(seconds: float | None) -> None:
    if seconds is not None and not _MIN_SECONDS <= seconds <= _MAX_SECONDS:
        raise UsageError(f"--seconds {seconds:g}: must be between {_MIN_SECONDS} and {_MAX_SECONDS:g}")


def _run_of(cells: Mapping[str, str], name: str | None) -> Run:
    """Return the run of this name; without a name, the last run whose code is known, or the last one."""
    if name is None:
        name = next((recorded for recorded in reversed(list(runs)) if recorded in cells), None)
    return runs.last if name is None else find_run(name)


def _code_of(shell: InteractiveShell, cells: Mapping[str, str], run: Run) -> str:
    """Return the code of the cell that was profiled as this run."""
    if run.name not in cells:
        raise CaptureError(
            f"The fix for {run.name!r} cannot be tried.",
            why="the run was not recorded by %%gpuprofile in this session, so that its code is unknown",
            fix=f"put %%gpuprofile {shell_word(run.name)} at the top of the training cell and run it",
        )
    code: str = shell.transform_cell(cells[run.name])
    return code
