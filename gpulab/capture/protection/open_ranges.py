"""Ranges of `record_function` that are still open when a profiler stops.

When such a range ends while another profiler runs, PyTorch (2.13) writes its end into the freed memory of the first
one. The program then crashes. A `with record_function("epoch")` around a loop is open in several windows of ours, or
still open when the program starts a profiler of its own. The end of such a range is put off until no profiler runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpulab.capture.profiler import is_profiler_running

_UNENDED: list[Any] = []  # a record ends at the latest when it is freed


class OpenRanges:
    """Knows in which window of ours a range was entered; `window` is the number of the one that records, 0 for none."""

    def __init__(self) -> None:
        self.window = 0
        self._entered: dict[int, int] = {}  # the window of each open range, by id
        self._installed = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch ranges within this context, and those that are open at its end until they end."""
        from torch.autograd.profiler import record_function

        ranges: Any = record_function
        enter, leave = ranges.__enter__, ranges.__exit__

        def entered(span: Any) -> Any:
            result = enter(span)
            if self.window:
                self._entered[id(span)] = self.window
            return result

        def left(span: Any, *error: Any) -> None:
            window = self._entered.pop(id(span), self.window)
            if window != self.window and is_profiler_running():
                _UNENDED.append(span.record)
                span.run_callbacks_on_exit = False
                leave(span, *error)
                span.run_callbacks_on_exit = True
            else:
                leave(span, *error)
            if not self._installed and not self._entered:
                restore()

        def restore() -> None:
            if ranges.__enter__ is entered and ranges.__exit__ is left:  # a patch of the user's over ours stays
                ranges.__enter__, ranges.__exit__ = enter, leave

        self._installed = True
        ranges.__enter__, ranges.__exit__ = entered, left
        try:
            yield
        finally:
            self._installed = False
            if not self._entered:
                restore()
            if not is_profiler_running():
                _UNENDED.clear()
