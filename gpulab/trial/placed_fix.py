"""A cell or a script with a fix in it, and the error for a fix that has no place in it."""

from __future__ import annotations

import ast
from typing import NamedTuple

from gpulab.errors import CaptureError
from gpulab.trial.refusal import COMPARE_YOURSELF


class PlacedFix(NamedTuple):
    """A cell, or a script, with a fix."""

    cell: ast.Module
    line: int = 0  # the last line before the fix; 0 if the fix comes first
    function: str = ""  # the function of another cell that has the fix, if it is not in this one
    settings: str = ""  # the arguments of the call in this line that are the fix, if it is no code
    call: str = "DataLoader"

    def place_in(self, noun: str) -> str:
        """Say where the fix is: "inserted after line 3 of the cell". `noun`: what has the fix, a cell or a script."""
        if self.function:
            return f"inserted in {self.function}(), which another cell defines"
        if self.settings:
            return f"{self.settings} in the {self.call}(...) in line {self.line} of the {noun}"
        return f"inserted after line {self.line} of the {noun}" if self.line else f"inserted at the start of the {noun}"


def without_place(why: str, change: str = "") -> CaptureError:
    """Return the error for a fix that a trial cannot insert. `change`: what the user may change instead."""
    return CaptureError("This fix cannot be tried automatically.", why=why, fix=f"{change}{COMPARE_YOURSELF}")
