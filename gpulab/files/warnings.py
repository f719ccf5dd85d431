"""Telling the user what a load could not do, without failing it."""

from __future__ import annotations

import sys
import warnings


def warn(what: str) -> None:
    """A warning that points at the line outside gpulab which led here."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("gpulab."):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"gpulab: {what}", stacklevel=level)
