"""Interrupting the main thread, as the interrupt button of a notebook does."""

from __future__ import annotations

import _thread
import signal
import threading


def interrupt() -> None:
    """Raise KeyboardInterrupt in the main thread; also one that waits in a system call wakes up."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()


def interrupt_soon() -> None:
    """The same, a moment later: when the caller has returned."""
    timer = threading.Timer(0.05, interrupt)
    timer.daemon = True
    timer.start()
