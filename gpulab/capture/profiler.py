"""torch.profiler windows: start and stop several times in one cell, and keep each window until it is read."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import sleep, time_ns  # bound here: the program may replace the functions of the module
from typing import Any

from gpulab import trace
from gpulab.capture.protection.cuda_check import is_cuda_available, nvml_first
from gpulab.capture.protection.event_budget import return_freed_memory
from gpulab.capture.protection.guard import error_text, is_from_outside
from gpulab.capture.protection.temporary_folder import temporary_folder
from gpulab.errors import CaptureError, TraceError
from gpulab.run import Run
from gpulab.sensors.background_thread import blocked_signals

QUIET_NS = 2_000_000
OPEN_OPERATORS_SINCE = "2.13"  # the PyTorch that reports operators which were open when the profiler stopped


def warm_up() -> None:
    """Run torch.profiler and the trace reader once, so that the first cell does not pay for a second of imports."""
    if is_profiler_running():
        return
    window = TraceWindow(())
    window.start()
    if window.stop():
        window.read("warm-up")


@contextlib.contextmanager
def silence_kineto() -> Iterator[None]:
    """Silence Kineto's log, which goes straight to stderr; Kineto reads this variable at its first start."""
    before = os.environ.get("KINETO_LOG_LEVEL")
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    try:
        yield
    finally:
        if before is None:
            del os.environ["KINETO_LOG_LEVEL"]


def is_profiler_running() -> bool:
    """Whether a PyTorch profiler is running in this process."""
    if "torch" not in sys.modules:
        return False
    import torch

    return bool(torch._C._autograd._profiler_enabled())


@dataclass(frozen=True)
class EventCount:
    """How many events a window held, and whether an operator of the host may still have been open when it ended.

    Such an operator writes its end into freed memory if the next profiler already runs, and the program crashes.
    """

    number: int
    is_open: bool


class TraceWindow:
    """One window of profiling: start, stop, and read later."""

    def __init__(self, options: tuple[str, ...]) -> None:
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if is_cuda_available():
            activities.append(ProfilerActivity.CUDA)
        self.activities = tuple(activity.name.lower() for activity in activities)
        flags: dict[str, Any] = dict.fromkeys(options, True)
        with nvml_first():  # the profiler asks, too
            options_here = {"experimental_config": _sync_events(), **_accumulated_events()}
            self._profile: Any = profile(activities=activities, **options_here, **flags)
        self._running = self._is_paused = False
        self._has_stacks = "with_stack" in options
        self.can_pause = self.activities == ("cpu",) and not options  # stacks and kernels are recorded all the same
        self._quiet_ns = 0
        self._path: Path | None = None

    def start(self) -> None:
        """Start the profiler; raises CaptureError if it does not start."""
        try:
            with silence_kineto(), blocked_signals():  # the profiler starts threads of its own
                self._profile.start()
                _keep_events_unprocessed(self._profile)
        except RuntimeError as error:
            raise CaptureError(
                "torch.profiler did not start.",
                why=str(error).splitlines()[0],
                fix="use --level sensors for this cell, or restart the kernel; another CUPTI tool may be using the GPU",
            ) from error
        self._running = True

    def pause(self) -> None:
        """Record no more operators of this thread, in microseconds; `stop` processes the events later.

        PyTorch then calls no observer of operators in this thread: operators take as long as without a profiler.
        """
        import torch

        self._is_paused = True
        torch._C._autograd._enable_record_function(False)

    def stop(self) -> bool:
        """Stop the profiler; False if another profiler has taken the recording over."""
        if not self._running:
            return False
        self._running = False
        if self._is_paused:
            import torch

            self._is_paused = False
            torch._C._autograd._enable_record_function(True)
        if not is_profiler_running():
            return False
        gc_enabled = gc.isenabled()
        gc.disable()  # stop() builds an object per event; without garbage collection it takes half the time
        try:
            self._profile.stop()
        finally:
            if gc_enabled:
                gc.enable()
        return True

    def stop_quietly(self) -> bool:
        """Stop after a pause, which shows in `count_events` whether anything was still open."""
        self._quiet_ns = time_ns() + QUIET_NS // 2  # the clock of the events may differ from ours a little
        sleep(QUIET_NS / 1e9)
        return self.stop()

    def count_events(self) -> EventCount | None:
        """Count the events after `stop_quietly`, in 1 to 3 us each; None if unknown.

        An operator that is still open ends when the profiler stops, except with stacks, where the end of such an event
        is wrong; an open exchange of gloo, such as an isend without its wait, ends with the operator that started it.
        Neither has a thread in which it ended. Kernels may run later. Before PyTorch 2.13 open operators are missing:
        there may be one.
        """
        import torch
        from torch.autograd import DeviceType  # type: ignore[attr-defined]

        results = getattr(getattr(self._profile, "profiler", None), "kineto_results", None)
        if results is None or self._has_stacks:
            return None
        events, on_host = results.events(), DeviceType.CPU
        if torch.torch_version.TorchVersion(torch.__version__) < OPEN_OPERATORS_SINCE:
            return EventCount(len(events), is_open=True)
        open_or_late = [event for event in events if not event.end_thread_id() or event.end_ns() > self._quiet_ns]
        return EventCount(len(events), is_open=any([event.device_type() == on_host for event in open_or_late]))

    @property
    def is_stored(self) -> bool:
        """Whether the events are on disk."""
        return self._path is not None

    def abandon(self) -> None:
        """Stop and ignore errors: nothing of this window is needed."""
        with contextlib.suppress(RuntimeError):
            self.stop()

    def store(self, path: Path) -> None:
        """Write the events to a new file and free their memory. Raises OSError or RuntimeError; the events then stay.

        The file has its name only when it is complete: the process may be killed meanwhile.
        """
        partial = path.with_name(f"{path.name}.partial")
        try:
            self._profile.export_chrome_trace(str(partial))
            partial.replace(path)
        except BaseException:
            for leftover in (partial, partial.with_name(f"{partial.name}.tmp")):  # Kineto writes the second one first
                leftover.unlink(missing_ok=True)
            raise
        self._path = path
        self.release()

    def release(self) -> None:
        """Free the memory of the events that are still in memory."""
        if self._profile is not None:
            vars(self._profile).clear()  # it refers to itself, and would live until the next full garbage collection
            self._profile = None
            return_freed_memory()

    def read(self, name: str) -> Run:
        """Read the window as a Run. Raises CaptureError if the trace cannot be exported."""
        try:
            if self._path is not None:
                return trace.read(self._path, name=name)
            with temporary_folder() as folder:
                path = folder / "trace.json"
                self._profile.export_chrome_trace(str(path))
                return trace.read(path, name=name)
        except (RuntimeError, OSError, TraceError) as error:
            if is_from_outside(error):  # a handler of the program's may raise TimeoutError, which is an OSError
                raise
            raise CaptureError(
                "The profiler's events could not be written to disk and read back.",
                why=error_text(error),
                fix="free space in the temporary directory (TMPDIR), or record fewer steps: --steps 5, "
                "in scripts gpulab.profile(steps=5)",
            ) from error


def _sync_events() -> Any:
    """Options for CUDA synchronisation events, which show who waits for whom; private, absent in some builds."""
    from torch._C import _profiler

    try:
        return _profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    except TypeError:
        return None


def _accumulated_events() -> dict[str, bool]:
    """The option without which PyTorch before 2.13 warns, at each start, that a profiler forgets earlier cycles."""
    from torch.profiler import profile

    return {"acc_events": True} if "acc_events" in inspect.signature(profile).parameters else {}


def _keep_events_unprocessed(profiler: Any) -> None:
    """Take the option back: with it, stopping makes a Python object of each event, which takes 50 us each."""
    inner: Any = getattr(profiler, "profiler", None)
    if getattr(inner, "acc_events", False):
        inner.acc_events = False


@contextlib.contextmanager
def yield_to_user_profiler(on_user_profiler: Callable[[], None]) -> Iterator[None]:
    """Within this context, call `on_user_profiler()` just before a profiler that is not ours starts.

    Two PyTorch profilers cannot record at once: the outer one silently gets nothing. The user's own has precedence.
    """
    import torch.autograd.profiler

    torch_profiler: Any = torch.autograd.profiler
    prepare = getattr(torch_profiler, "_prepare_profiler", None)
    if prepare is None:  # another version of torch: stop() then detects the loss
        yield
        return

    def prepared(*args: Any, **kwargs: Any) -> Any:
        if not _is_our_start(sys._getframe(1)):
            on_user_profiler()
        return prepare(*args, **kwargs)

    enable = torch_profiler._enable_profiler

    def enabled(*args: Any, **kwargs: Any) -> Any:  # emit_nvtx() and emit_itt() call only this
        if not _is_our_start(sys._getframe(1)):
            on_user_profiler()
        return enable(*args, **kwargs)

    torch_profiler._prepare_profiler, torch_profiler._enable_profiler = prepared, enabled
    try:
        yield
    finally:
        if torch_profiler._prepare_profiler is prepared:  # a patch that the user's code put over ours stays
            torch_profiler._prepare_profiler = prepare
        if torch_profiler._enable_profiler is enabled:
            torch_profiler._enable_profiler = enable


def _is_our_start(frame: Any) -> bool:
    while frame is not None:
        if frame.f_code is TraceWindow.start.__code__:
            return True
        frame = frame.f_back
    return False


__all__ = ["TraceWindow", "is_profiler_running", "silence_kineto", "warm_up", "yield_to_user_profiler"]
