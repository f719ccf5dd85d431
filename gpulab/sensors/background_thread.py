"""Threads of gpulab in a program of somebody else, which may wait for all of its threads, or block signals."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class BackgroundThread(threading.Thread):
    """A daemon thread for which a program that joins every thread does not wait, and that takes none of its signals."""

    def start(self) -> None:
        """Start the thread. Raises RuntimeError where no thread can start."""
        self.daemon = True
        with blocked_signals():  # a thread inherits the mask: a signal that the program blocks must stay pending
            super().start()

    def join(self, timeout: float | None = None) -> None:
        """Return at once: the thread runs until the recording ends, and the program may join it before that."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the thread has ended."""
        super().join(timeout_s)


@contextmanager
def blocked_signals() -> Iterator[None]:
    """Let threads that start in this context take no signals; those for this thread arrive at its end."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
