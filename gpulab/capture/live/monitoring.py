"""A session in the background, across cells: sensors and step marks, without the profiler.

It takes no part while a cell is profiled: two samplers would count each other as work of the program, and its hooks
would lie inside the times that are recorded. So it stops wholly, and begins again after.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from gpulab.capture.active_session import leave, settle
from gpulab.capture.live.snapshot import Live
from gpulab.capture.main_thread import PendingCall
from gpulab.capture.run_registry import runs
from gpulab.capture.session import Session
from gpulab.errors import CaptureError
from gpulab.run import Run

_HOOKED = ("torch.optim.optimizer", "torch.utils.data.dataloader")  # what step marks hang on
RETRY_S = 0.02
_NOBODY = -1  # no thread has this number


class Monitoring(Session):
    """Records from `start()` to `stop()`; both may be called in any thread, start in the one whose steps count.

    PyTorch is hooked when the program has imported it, and never imported by us.
    """

    def __init__(
        self, name: str | None = None, *, every_s: float, on_tick: Callable[[Live], None] | None = None
    ) -> None:
        super().__init__(name, level="sensors", on_tick=on_tick, period_ns=round(every_s * 1e9))
        self.thread = self._marks.thread
        self._lock = threading.RLock()
        self._ended = False
        self._paused_for: str | None = None
        self._paused_ns = 0
        self._gave_way: dict[str, None] = {}  # to these, in order
        self._marking = self._watches_memory = False
        self._in_main = self.thread == threading.main_thread().ident
        self._hook = PendingCall(self._hook_torch)
        self._unhook = PendingCall(self._let_go)

    def start(self) -> None:
        """Begin. Raises CaptureError while another monitor is on or a cell is being recorded."""
        settle(self)
        try:
            self._stalls.install()
            self._hook_torch()
            self._began_ns = self._window_ns = time.time_ns()
            self._plan.begin(self._began_ns)
            self._sensors.start()
        except BaseException:
            self._let_go()
            raise
        atexit.register(self.abandon)

    def stop(self, error: BaseException | None = None) -> Run:
        """End, leave no thread and no hook, and give the Run; a second time gives the same one."""
        with self._lock:
            if self.run is not None:
                return self.run
            if self._ended:
                raise CaptureError(
                    f"The monitor {self.name!r} has no run.",
                    why="it was given up before it was stopped",
                    fix="start another: gpulab.monitor()",
                )
            ended_ns = time.time_ns()
            self._end()
            self._told_pause(ended_ns)
            return self._kept(ended_ns, error)

    def abandon(self) -> None:
        """End and leave nothing, without a run; harmless if it has ended."""
        with self._lock:
            if not self._ended:
                self._end()

    def give_way(self, recorder: str) -> None:
        """Another recording begins, in the thread that calls: until it ends, nothing here is on."""
        with self._lock:
            if self._ended:
                self._let_go()
                return
            self._paused_for, self._paused_ns = recorder, time.time_ns()
            self._gave_way[recorder] = None
            try:
                self._sensors.stop()
                self._tell()
            except Exception as error:  # protects the other recording; the failure is reported as a gap
                self._broke("giving way", error)
            finally:
                self._stalls.remove()
                self._unmark()

    def go_on(self) -> None:
        """The other recording has ended."""
        with self._lock:
            if self._ended or self._paused_for is None:
                return
            self._told_pause(time.time_ns())
            try:
                self._stalls.install()
                self._hook_torch()
                self._sensors.start()
            except Exception as error:  # protects what was recorded; the failure is reported as a gap
                self._broke("going on", error)

    def mark_step(self) -> None:
        """The user says that a step ended here; without torch these are the only marks there are."""
        if not self._ended and self._paused_for is None:
            super().mark_step()

    def _phase(self) -> str:
        return super()._phase() if self._paused_for is None else f"paused while {self._paused_for} is recorded"

    def _tick(self) -> None:
        if self._in_main and not self._marking and _torch_is_there():
            self._hook.request()  # in the main thread, where no import and no optimizer can be half way
        self._tell()

    def _tell(self) -> None:
        if self._on_tick is not None:
            self._on_tick(self.live())

    def _hook_torch(self) -> None:
        """In the recorded thread: mark steps from here on, if PyTorch was imported; else at a later tick."""
        if self._ended or self._paused_for is not None or self._marking or not _torch_is_there():
            return
        if _among_hooks():
            return
        self._marking = True  # also where it fails: it would fail again
        try:
            self._marks.install()
        except (ImportError, AttributeError) as error:
            self._leave_out("steps", f"this PyTorch cannot be hooked: {error}", "use PyTorch 2.4 or newer")
        if not self._watches_memory:
            self._watches_memory = True
            self._memory.begin()

    def _unmark(self) -> None:
        self._marks.remove()
        self._marking = False

    def _end(self) -> None:
        self._ended = self._processing = True
        self._hook.cancel()
        atexit.unregister(self.abandon)
        self._sensors.stop()
        # A hook that goes while an optimizer calls its hooks would break the user's step: elsewhere than in the
        # recorded thread they only fall silent, and go as soon as that thread can do it between two instructions.
        self._marks.thread = _NOBODY
        if threading.get_ident() == self.thread or not self._in_main:
            self._let_go()
        else:
            self._stalls.remove()
            self._unhook.request()

    def _let_go(self) -> None:
        """Take every hook away, at a place where no optimizer is just calling them."""
        if self._marking and _among_hooks():
            again = threading.Timer(RETRY_S, self._unhook.request)  # at once would be at the next instruction
            again.daemon = True
            again.start()
            return
        self._stalls.remove()
        self._unmark()
        self._unhook.cancel()
        leave()

    def _told_pause(self, until_ns: int) -> None:
        if self._paused_for is not None:
            self._pauses.append((self._paused_ns, until_ns))
            self._paused_for = None

    def _broke(self, doing: str, error: Exception) -> None:
        self._leave_out("part of the sensors", f"{doing} failed: {error}", "please report this as a fault of gpulab")

    def _kept(self, ended_ns: int, error: BaseException | None) -> Run:
        for name in self._gave_way:
            self._leave_out(
                f"the time in which {name!r} was recorded",
                "the monitor gave way: two recordings at once would measure each other",
                f"see that run: gpulab.report(gpulab.runs[{name!r}])",
            )
        if not self._watches_memory:
            self._leave_out("steps", "PyTorch was not imported while the monitor ran", "nothing needs doing without it")
        self.run = self._assembled(ended_ns, error)
        runs.add(self.run)
        return self.run


def _torch_is_there() -> bool:
    """Whether the program has imported all that is to be hooked, to the end."""
    modules: list[Any] = [sys.modules.get(name) for name in ("torch", *_HOOKED)]
    return all(module is not None and not _importing(module) for module in modules)


def _importing(module: Any) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _among_hooks() -> bool:
    """Whether the calling thread is just inside an optimizer, which goes through its hooks."""
    frame = sys._getframe(1)
    with contextlib.suppress(AttributeError):
        while frame is not None:
            if frame.f_globals.get("__name__") == _HOOKED[0]:
                return True
            frame = frame.f_back  # type: ignore[assignment]
    return False
