"""Expected failures. Every error says what happened, why, and what to do next."""

from __future__ import annotations

import traceback
from pathlib import Path

from gpulab.wording import clean, clean_code

_MAX_LENGTH = 6000


class GpulabError(Exception):
    """An expected failure: what happened, why, and the fix. A notebook shows it without a traceback.

    The texts often quote a file: characters that control a terminal or reorder a line are escaped here, for all errors.
    """

    def __init__(self, problem: str, *, why: str, fix: str) -> None:
        problem, why, fix = clean(problem, _MAX_LENGTH), clean_code(why, _MAX_LENGTH), clean_code(fix, _MAX_LENGTH)
        super().__init__(f"{problem}\n  why: {why}\n  fix: {fix}")
        self.problem, self.why, self.fix = problem, why, fix

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions with keyword-only arguments do not pickle by default, and worker processes send them to the parent.
        return _rebuild, (type(self), self.problem, self.why, self.fix)

    def _render_traceback_(self) -> list[str]:
        # IPython prints these lines instead of the traceback. Nothing else calls this.
        return [f"{type(self).__name__}: {self}"]


class TraceError(GpulabError):
    """A trace file cannot be read."""


class StoreError(GpulabError):
    """A `.gpulab` file cannot be written or read."""


class CaptureError(GpulabError):
    """A recording cannot start, or it recorded nothing."""


class RunError(GpulabError):
    """A run is missing, or lacks the data that a function needs."""


def problem_text(problem: Exception) -> str:
    """The message of an expected failure; for a bug in gpulab, its location and a request to report it."""
    if isinstance(problem, GpulabError):
        return str(problem)
    frame = traceback.extract_tb(problem.__traceback__)[-1]
    location = f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
    details = clean(str(problem))
    return f"a fault in gpulab itself, please report it: {type(problem).__name__}: {details} ({location})"


def _rebuild(kind: type[GpulabError], problem: str, why: str, fix: str) -> GpulabError:
    return kind(problem, why=why, fix=fix)
