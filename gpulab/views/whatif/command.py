"""How to ask for a prediction, as text: the magic for a run that it finds by name, else the call in Python."""

from __future__ import annotations

from gpulab.capture.run_registry import runs
from gpulab.run import Run
from gpulab.wording import shell_word


def whatif_command(run: Run, *changes: str) -> str:
    """Return the command that predicts a run with these changes: "%gpuwhatif before workers=4"."""
    if runs.holds(run):
        return f"%gpuwhatif {shell_word(run.name)} {' '.join(changes)}"
    return f'run.whatif("{", ".join(" ".join(changes).split())}")'
