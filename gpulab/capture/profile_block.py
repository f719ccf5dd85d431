"""`gpulab.profile`: record a block of code."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from types import TracebackType

from gpulab.capture.live.snapshot import LiveSnapshot
from gpulab.capture.protection.guard import error_text, is_from_outside
from gpulab.capture.session import Session


class ProfiledBlock(contextlib.ContextDecorator):
    """Records the block of a `with` statement, or each call of a function that it decorates.

    A class, because contextlib's generators assign to the exception that passes through them.
    """

    def __init__(self, new_session: Callable[[], Session]) -> None:
        self._new_session = new_session
        self._sessions: list[Session] = []

    def __enter__(self) -> Session:
        session = self._new_session()
        try:
            session.start()
            self._sessions.append(session)
            return session
        except BaseException:  # a signal of the program's, as soon as the recording had started
            session.abandon()
            raise

    def __del__(self) -> None:
        """End what is still running, e.g. because a signal handler raised at the first instruction of `__exit__`."""
        for session in self._sessions:
            session.abandon()
            with contextlib.suppress(Warning):
                warnings.warn(f"gpulab: the recording {session.name!r} was lost: its block did not end", stacklevel=2)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        session = self._sessions.pop()
        try:
            session.stop(error)
        except BaseException as problem:  # protects the user's result; the run is lost, and the warning says so
            session.abandon()
            if not isinstance(problem, Exception) or is_from_outside(problem):
                raise
            with contextlib.suppress(Warning):  # the program may have turned warnings into errors
                warnings.warn(f"gpulab: the recording {session.name!r} was lost: {error_text(problem)}", stacklevel=2)


def profile(
    name: str | None = None,
    *,
    level: str = "trace",
    steps: int | None = None,
    on_tick: Callable[[LiveSnapshot], None] | None = None,
) -> ProfiledBlock:
    """Record a block: `with gpulab.profile("before") as session: ...`, then `session.run` or `gpulab.runs["before"]`.

    level: "sensors" (no profiler), "trace" (default) or "deep" (stacks, shapes, memory). steps: number of steps to
    record; by default as many as a diagnosis needs. An exception in the block propagates, and the run is kept; so is
    the block's result, if the recording fails: then gpulab warns. Raises CaptureError if recording cannot start.
    """
    return ProfiledBlock(lambda: Session(name, level=level, steps=steps, on_tick=on_tick))
