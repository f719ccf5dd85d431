"""`gpulab.profile`: record a block of code."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator

from gpulab.capture.live.snapshot import LiveSnapshot
from gpulab.capture.protection.guard import error_text, is_from_outside
from gpulab.capture.session import Session


@contextlib.contextmanager
def profile(
    name: str | None = None,
    *,
    level: str = "trace",
    steps: int | None = None,
    on_tick: Callable[[LiveSnapshot], None] | None = None,
) -> Iterator[Session]:
    """Record a block: `with gpulab.profile("before") as session: ...`, then `session.run` or `gpulab.runs["before"]`.

    level: "sensors" (no profiler), "trace" (default) or "deep" (stacks, shapes, memory). steps: number of steps to
    record; by default as many as a diagnosis needs. An exception in the block propagates, and the run is kept.
    Raises CaptureError if recording cannot start.
    """
    session = Session(name, level=level, steps=steps, on_tick=on_tick)
    session.start()
    try:
        yield session
    except BaseException as error:
        _stop(session, error)
        raise
    _stop(session, None)


def _stop(session: Session, error: BaseException | None) -> None:
    """Stop; a failure of gpulab is a warning, because the user's block has ended, and its result counts."""
    try:
        session.stop(error)
    except Exception as problem:  # protects the user's result; the run is lost, and the warning says so
        if is_from_outside(problem):
            raise
        warnings.warn(f"gpulab: the recording {session.name!r} was lost: {error_text(problem)}", stacklevel=4)
