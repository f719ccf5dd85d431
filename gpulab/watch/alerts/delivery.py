"""Deliver notices to receivers, each in a thread of its own, so that none delays the watch or another receiver."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

from gpulab.watch.alerts.alert import QuietHours
from gpulab.watch.alerts.notice import Notice

LOGGER = logging.getLogger("gpulab.alerts")
_MAX_WAITING = 1000  # notices per receiver
_MAX_TRIES = 15  # after the delays below: about an hour
_FIRST_DELAY_S, _MAX_DELAY_S = 1.0, 600.0


class TemporaryFailure(Exception):  # noqa: N818  (an answer of a receiver)
    """A receiver could not take a notice now; `after_s` is when it asks to be tried again."""

    def __init__(self, why: str, after_s: float | None = None) -> None:
        super().__init__(why)
        self.after_s = after_s


# Takes the text of a notice; may block. Raises TemporaryFailure to be called again, any other error to drop the notice.
Receiver: TypeAlias = Callable[[str], None]


def log_receiver(text: str) -> None:
    """Write to the log `gpulab.alerts`, level WARNING."""
    LOGGER.warning(text)


class Delivery:
    """Delivers in the background. In quiet hours it waits; what has ended by then is not delivered any more."""

    def __init__(
        self,
        receivers: Sequence[Receiver],
        *,
        quiet: QuietHours | None = None,
        sleep: Callable[[float], bool] | None = None,
    ) -> None:
        self._quiet, self._held_back = quiet, list[Notice]()
        self._stopping = threading.Event()
        wait = sleep or self._stopping.wait
        self._lines = [_Line(receiver, wait, self._stopping) for receiver in receivers]

    def send(self, notice: Notice) -> None:
        """Deliver a notice, or keep it until the end of the quiet hours. Returns at once."""
        if self._quiet is not None and self._quiet.include(notice.at_s):
            self._hold_back(notice)
            return
        for line in self._lines:
            line.put(notice)

    def tick(self, at_s: float) -> None:
        """Deliver what was held back, once the quiet hours are over."""
        if self._held_back and self._quiet is not None and not self._quiet.include(at_s):
            waiting, self._held_back = self._held_back, []
            for notice in waiting:
                self.send(notice if not self._quiet.include(notice.at_s) else _later(notice, at_s))

    def close(self, timeout_s: float = 5.0) -> None:
        """Wait for what is being delivered, at most so long, and stop."""
        deadline_s = time.monotonic() + timeout_s
        for line in self._lines:
            line.finish(deadline_s)
        self._stopping.set()

    def _hold_back(self, notice: Notice) -> None:
        same = [
            other for other in self._held_back if (other.subject, other.measure) == (notice.subject, notice.measure)
        ]
        if notice.ended:
            self._held_back = [other for other in self._held_back if other not in same]
        elif not same:
            self._held_back.append(notice)


class _Line:
    """One receiver with its queue and its thread."""

    def __init__(self, receiver: Receiver, wait: Callable[[float], bool], stopping: threading.Event) -> None:
        self._receiver, self._wait, self._stopping = receiver, wait, stopping
        self._queue: queue.Queue[Notice] = queue.Queue(_MAX_WAITING)
        self._thread = threading.Thread(target=self._deliver_all, name="gpulab-alerts", daemon=True)
        self._thread.start()

    def put(self, notice: Notice) -> None:
        try:
            self._queue.put_nowait(notice)
        except queue.Full:
            LOGGER.error("an alert was dropped, because %d others wait for their receiver", _MAX_WAITING)

    def finish(self, deadline_s: float) -> None:
        while self._queue.unfinished_tasks and time.monotonic() < deadline_s:
            time.sleep(0.01)

    def _deliver_all(self) -> None:
        while not self._stopping.is_set():
            notice = self._queue.get()
            try:
                self._deliver(notice.text())
            finally:
                self._queue.task_done()

    def _deliver(self, text: str) -> None:
        delay_s = _FIRST_DELAY_S
        for _ in range(_MAX_TRIES):
            try:
                self._receiver(text)
            except TemporaryFailure as failure:
                if self._wait(min(_MAX_DELAY_S, failure.after_s or delay_s)):
                    return
                delay_s *= 2
            except Exception as problem:  # a receiver of the user: it must not end the others, and is reported
                LOGGER.error("an alert could not be delivered: %s: %s", type(problem).__name__, problem)
                return
            else:
                return
        LOGGER.error("an alert could not be delivered in %d tries, and is dropped", _MAX_TRIES)


def _later(notice: Notice, at_s: float) -> Notice:
    from dataclasses import replace

    return replace(notice, at_s=at_s, headline=f"{notice.headline} (since the quiet hours)")
