"""Interrupt the main thread like the interrupt button of a notebook."""

from __future__ import annotations

import _thread
import signal
import threading


def interrupt_main_thread() -> None:
    """Raise KeyboardInterrupt in the main thread, even if it waits in a system call."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        _thread.interrupt_main()


def interrupt_soon() -> None:
    """Interrupt 50 ms later, after the caller has returned."""
    timer = threading.Timer(0.05, interrupt_main_thread)
    timer.daemon = True
    timer.start()
