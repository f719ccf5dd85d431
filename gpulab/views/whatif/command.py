"""How to ask for a prediction, as text: a magic in a notebook, a call in a script."""

from __future__ import annotations

import sys

from gpulab.capture.run_registry import runs
from gpulab.run import Run
from gpulab.wording import shell_word


def whatif_command(run: Run, *changes: str) -> str:
    """Return the command that predicts a run with these changes: "%gpuwhatif before workers=4".

    RUN stands for the variable that holds the run if it was not recorded in this process.
    """
    is_registered = runs.holds(run)
    if is_registered and has_magics():
        return f"%gpuwhatif {shell_word(run.name)} {' '.join(changes)}"
    arguments = ", ".join(" ".join(changes).split())
    return f'gpulab.whatif({f"gpulab.runs[{run.name!r}]" if is_registered else "RUN"}, "{arguments}")'


def has_magics() -> bool:
    """Whether this process is a notebook kernel or an IPython terminal."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None
