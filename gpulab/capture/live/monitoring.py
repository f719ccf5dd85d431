"""Background session across cells: sensors and step marks, without the profiler.

It stops completely while a cell is profiled and starts again after it: otherwise the two samplers would count each
other as work of the program, and the monitor's hooks would be part of the recorded times.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from gpulab.capture.active_session import register_monitor, unregister_monitor
from gpulab.capture.live.snapshot import LiveSnapshot
from gpulab.capture.protection.main_thread import PendingCall
from gpulab.capture.run_registry import runs
from gpulab.capture.session import Session
from gpulab.deferred_signals import DeferredSignals
from gpulab.errors import CaptureError
from gpulab.run import Run
from gpulab.run_facts import GPU_BUSY, LOOP_TIME, STEP_COUNT, WAITING

_HOOKED = ("torch.optim.optimizer", "torch.utils.data.dataloader")  # modules that step marks hook
RETRY_S = 0.02
_NO_THREAD = -1  # not the number of any thread


class MonitorSession(Session):
    """Records from `start()` to `stop()`. Start it in the thread whose steps count; stop it in any thread.

    It hooks PyTorch once the program has imported it, and never imports it.
    """

    def __init__(
        self, name: str | None = None, *, every_s: float, on_tick: Callable[[LiveSnapshot], None] | None = None
    ) -> None:
        super().__init__(name, level="sensors", on_tick=on_tick, period_ns=round(every_s * 1e9))
        self.thread = self._marks.thread
        self._lock = threading.RLock()
        self._ended = False
        self._paused_for: str | None = None
        self._paused_ns = 0
        self._recorded_meanwhile: dict[str, None] = {}  # names of the recordings it paused for, in order
        self._marking = self._watches_memory = False
        self._in_main = self.thread == threading.main_thread().ident
        self._hook = PendingCall(self._hook_torch)
        self._unhook = PendingCall(self._remove_hooks)

    def start(self) -> None:
        """Start. Raises CaptureError while another monitor runs or a cell is being recorded."""
        register_monitor(self)
        try:
            with DeferredSignals(again=True):
                self._start()
        except BaseException:
            self.abandon()
            raise

    def _start(self) -> None:
        self._describe_machine()
        self._stalls.install()
        self._hook_torch()
        self._began_ns = time.time_ns()
        self._begin_spool()
        try:
            self._sensors.start()
        except RuntimeError as error:  # no thread can start; the marks need none
            self._note_failure("starting", error)
        atexit.register(self.abandon)

    def stop(self, error: BaseException | None = None) -> Run:
        """Stop, remove all threads and hooks, and return the Run; a second call returns the same Run."""
        with self._lock:
            if self.run is not None:
                return self.run
            if self._ended:
                raise CaptureError(
                    f"The monitor {self.name!r} has no run.",
                    why="it was abandoned before it was stopped",
                    fix="start another one: gpulab.monitor()",
                )
            try:
                ended_ns = time.time_ns()
                with DeferredSignals(again=True):
                    self._add_totals(self.live())
                    self._end()
                    self._end_pause(ended_ns)
                return self._finish_run(ended_ns, error)
            finally:
                try:
                    self.abandon()
                finally:  # a second call does nothing, unless a signal handler raised before the first one began
                    self.abandon()

    def _add_totals(self, live: LiveSnapshot) -> None:
        """Add what the panel shows of the whole time to the run: what was not measured is left out."""
        self.add_fact(STEP_COUNT, str(live.steps))
        totals = ((LOOP_TIME, live.loop_s or None), (WAITING, live.waiting_frac), (GPU_BUSY, live.gpu_busy_frac))
        for name, total in totals:
            if total is not None:
                self.add_fact(name, f"{total:.6f}")

    def abandon(self) -> None:
        """Stop and remove everything without a run; harmless if it has ended."""
        with DeferredSignals(again=True), self._lock:
            if not self._ended:
                self._end()
            self._spool.discard()

    def pause(self, recorder: str) -> None:
        """Stop everything until another recording ends; called in the recorded thread."""
        with DeferredSignals(again=True), self._lock:
            if self._ended:
                self._remove_hooks()
                return
            self._paused_for, self._paused_ns = recorder, time.time_ns()
            self._recorded_meanwhile[recorder] = None
            try:
                self._sensors.stop()
                self._paused_ns = time.time_ns()  # a sample that was being read belongs to the time before
                self._notify()
            except Exception as error:  # protects the other recording; the failure is reported as a gap
                self._note_failure("pausing", error)
            finally:
                self._stalls.remove()
                self._remove_marks()

    def resume(self) -> None:
        """Continue after the other recording has ended."""
        with DeferredSignals(again=True), self._lock:
            if self._ended or self._paused_for is None:
                return
            self._end_pause(time.time_ns())
            try:
                self._stalls.install()
                self._hook_torch()
                self._sensors.start()
            except Exception as error:  # protects what was recorded; the failure is reported as a gap
                self._note_failure("resuming", error)

    def mark_step(self) -> None:
        """Mark the end of a step, as requested by the user's code; without torch, there are no other marks."""
        if not self._ended and self._paused_for is None:
            super().mark_step()

    def _phase(self) -> str:
        return super()._phase() if self._paused_for is None else f"paused while {self._paused_for} is recorded"

    def _tick(self) -> None:
        if self._in_main and not self._marking and _is_torch_imported():
            self._hook.request()  # in the main thread, no import and no optimizer can be half-way
        self._spool.write()
        self._notify()

    def _notify(self) -> None:
        if self._on_tick is not None:
            self._on_tick(self.live())

    def _hook_torch(self) -> None:
        """Mark steps from now on if PyTorch is imported, else at a later tick; runs in the recorded thread."""
        if self._ended or self._paused_for is not None or self._marking or not _is_torch_imported():
            return
        if _in_optimizer_hooks():
            return
        self._marking = True  # also if it fails, because it would fail again
        try:
            self._marks.install()
        except (ImportError, AttributeError) as error:
            self._add_gap("steps", f"this PyTorch cannot be hooked: {error}", "use PyTorch 2.4 or newer")
        if not self._watches_memory:
            self._watches_memory = True
            self._memory.begin()

    def _remove_marks(self) -> None:
        self._marks.remove()
        self._marking = False

    def _end(self) -> None:
        self._ended = self._processing = True
        self._hook.cancel()
        atexit.unregister(self.abandon)
        self._sensors.stop()
        # Removing a hook while an optimizer iterates over its hooks would break the user's step. In other threads the
        # hooks only become inactive; the recorded thread removes them as soon as it can, between two instructions.
        self._marks.thread = _NO_THREAD
        if threading.get_ident() == self.thread or not self._in_main:
            self._remove_hooks()
        else:
            self._stalls.remove()
            self._unhook.request()

    def _remove_hooks(self) -> None:
        """Remove all hooks, unless an optimizer is iterating over them right now: then try again later."""
        if self._marking and _in_optimizer_hooks():
            timer = threading.Timer(RETRY_S, self._unhook.request)  # a request now would run at the next instruction
            timer.daemon = True
            timer.start()
            return
        self._stalls.remove()
        self._remove_marks()
        self._unhook.cancel()
        unregister_monitor()

    def _end_pause(self, until_ns: int) -> None:
        if self._paused_for is not None:
            self._pauses.append((self._paused_ns, until_ns))
            self._paused_for = None

    def _note_failure(self, operation: str, error: Exception) -> None:
        self._add_gap("part of the sensors", f"{operation} failed: {error}", "please report this as a bug in gpulab")

    def _finish_run(self, ended_ns: int, error: BaseException | None) -> Run:
        for name in self._recorded_meanwhile:
            self._add_gap(
                f"the time while {name!r} was recorded",
                "the monitor paused: two recordings at once would measure each other",
                f"see the report of that run: gpulab.report(gpulab.runs[{name!r}])",
            )
        if not self._watches_memory:
            self._add_gap(
                "steps", "PyTorch was not imported while the monitor ran", "nothing to do in code without PyTorch"
            )
        self.run = self._assemble(ended_ns, error)
        runs.add(self.run)
        return self.run


def _is_torch_imported() -> bool:
    """Whether the program has completely imported all modules to be hooked."""
    modules: list[Any] = [sys.modules.get(name) for name in ("torch", *_HOOKED)]
    return all([module is not None and not _importing(module) for module in modules])


def _importing(module: Any) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _in_optimizer_hooks() -> bool:
    """Whether the calling thread is inside an optimizer, which iterates over its hooks."""
    frame = sys._getframe(1)
    with contextlib.suppress(AttributeError):
        while frame is not None:
            if frame.f_globals.get("__name__") == _HOOKED[0]:
                return True
            frame = frame.f_back  # type: ignore[assignment]
    return False
