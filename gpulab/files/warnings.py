"""Warnings about what a load could not do."""

from __future__ import annotations

import sys
import warnings

from gpulab.wording import clean_code

_MAX_LENGTH = 6000


def warn(message: str) -> None:
    """Issue a warning that points at the calling line outside gpulab; text from files is made safe for a terminal."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("gpulab."):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"gpulab: {clean_code(message, _MAX_LENGTH)}", stacklevel=level)
