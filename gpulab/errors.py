"""Every expected failure: what happened, why, and what to do next."""

from __future__ import annotations

import traceback
from pathlib import Path


class GpulabError(Exception):
    """What happened, why, and the next step; a notebook shows it without a traceback."""

    def __init__(self, what: str, *, why: str, fix: str) -> None:
        super().__init__(f"{what}\n  why: {why}\n  fix: {fix}")
        self.what, self.why, self.fix = what, why, fix

    def __reduce__(self) -> tuple[object, ...]:
        # An exception with keyword-only arguments does not pickle by itself, and workers send theirs home.
        return _rebuilt, (type(self), self.what, self.why, self.fix)

    def _render_traceback_(self) -> list[str]:
        # IPython prints these lines in place of the traceback; without IPython nothing calls this.
        return [f"{type(self).__name__}: {self}"]


class TraceError(GpulabError):
    """A file that should hold a trace cannot be read as one."""


class StoreError(GpulabError):
    """A `.gpulab` file cannot be written, or is not one."""


class CaptureError(GpulabError):
    """Recording cannot start or did not record."""


class RunError(GpulabError):
    """A question was asked of a run that it, or its absence, cannot answer."""


def problem_text(problem: Exception) -> str:
    """An expected failure in its own words; a fault of gpulab with its place, and a request to report it."""
    if isinstance(problem, GpulabError):
        return str(problem)
    frame = traceback.extract_tb(problem.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
    return f"a fault in gpulab itself, please report it: {type(problem).__name__}: {problem} ({where})"


def _rebuilt(kind: type[GpulabError], what: str, why: str, fix: str) -> GpulabError:
    return kind(what, why=why, fix=fix)
