"""%gpufix: a trial of a fix in the user's notebook."""

from __future__ import annotations

from collections.abc import Mapping

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from gpulab.capture.run_registry import runs
from gpulab.errors import CaptureError
from gpulab.questions import diagnose
from gpulab.questions.run_names import find_run
from gpulab.trial.fix_trial import Trial, finding_to_try, try_fix
from gpulab.wording import shell_word

_MIN_SECONDS, _MAX_SECONDS = 0.2, 600.0


def try_fix_of(
    shell: InteractiveShell, cells: Mapping[str, str], name: str | None, rule: str | None, seconds: float
) -> Trial:
    """Try the fix of a run; the cell's output is hidden. `cells`: the code of the profiled cells by name of their run.

    Raises UsageError for a wrong duration, RunError or CaptureError if the fix cannot be tried.
    """
    if not _MIN_SECONDS <= seconds <= _MAX_SECONDS:
        raise UsageError(f"--seconds {seconds:g}: must be between {_MIN_SECONDS} and {_MAX_SECONDS:g}")
    if name is None:  # the last run whose code is known
        name = next((recorded for recorded in reversed(list(runs)) if recorded in cells), None)
    run = runs.last if name is None else find_run(name)
    finding = finding_to_try(diagnose(run), rule)
    if run.name not in cells:
        raise CaptureError(
            f"The fix for {run.name!r} cannot be tried.",
            why="the run was not recorded by %%gpuprofile in this session, so that its code is unknown",
            fix=f"put %%gpuprofile {shell_word(run.name)} at the top of the training cell and run it",
        )
    code = shell.transform_cell(cells[run.name])
    trial = try_fix(finding, code, shell.user_ns, name=run.name, seconds=seconds, quiet=capture_output)
    runs.add(run)  # again, so that it stays the last one for magics without a name
    return trial
