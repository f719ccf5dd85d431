"""torch.profiler, started and stopped several times in one cell, each stretch kept until it is read."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpulab import trace
from gpulab.errors import CaptureError
from gpulab.run import Run


def has_cuda() -> bool:
    """Whether torch can use a GPU here."""
    import torch

    return bool(torch.cuda.is_available())


def warm_up() -> None:
    """Pay for torch.profiler's first start and the reader's first read (a second of imports) before the first cell."""
    if someone_profiles():
        return
    stretch = Stretch(())
    stretch.start()
    if stretch.stop():
        stretch.read("warm-up")


@contextlib.contextmanager
def quiet_kineto() -> Iterator[None]:
    """Kineto writes its log straight to the process's stderr; it reads this variable at its first start."""
    before = os.environ.get("KINETO_LOG_LEVEL")
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    try:
        yield
    finally:
        if before is None:
            del os.environ["KINETO_LOG_LEVEL"]


def someone_profiles() -> bool:
    """Whether a PyTorch profiler is running in this process."""
    if "torch" not in sys.modules:
        return False
    import torch

    return bool(torch._C._autograd._profiler_enabled())


class Stretch:
    """One stretch of recording: start, stop, and later read."""

    def __init__(self, options: tuple[str, ...]) -> None:
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if has_cuda():
            activities.append(ProfilerActivity.CUDA)
        self.activities = tuple(activity.name.lower() for activity in activities)
        wanted: dict[str, Any] = dict.fromkeys(options, True)
        self._profile: Any = profile(activities=activities, experimental_config=_sync_events(), **wanted)
        self._running = False

    def start(self) -> None:
        """Begin to record; raises CaptureError where the profiler will not start."""
        try:
            with quiet_kineto():
                self._profile.start()
        except RuntimeError as error:
            raise CaptureError(
                "torch.profiler did not start.",
                why=str(error).splitlines()[0],
                fix="use --level sensors for this cell, or restart the kernel; another CUPTI tool may hold the GPU",
            ) from error
        self._running = True

    def stop(self) -> bool:
        """End it; False where another profiler took the recording away in the meantime."""
        if not self._running:
            return False
        self._running = False
        if not someone_profiles():
            return False
        collecting = gc.isenabled()
        gc.disable()  # stop() builds an object per event; without cycles to find it takes half the time
        try:
            self._profile.stop()
        finally:
            if collecting:
                gc.enable()
        return True

    def abandon(self) -> None:
        """Stop without hope of anything recorded; what goes wrong in that is of no more interest."""
        with contextlib.suppress(RuntimeError):
            self.stop()

    def events_since(self, unix_ns: int) -> int:
        """How many events began at or after this moment."""
        results = self._profile.profiler.kineto_results.events()
        return sum(event.start_ns() >= unix_ns for event in results)

    def read(self, name: str) -> Run:
        """The stretch as a Run of its own. Raises CaptureError where the trace cannot be exported."""
        with tempfile.TemporaryDirectory(prefix="gpulab-") as folder:
            path = Path(folder) / "trace.json"
            try:
                self._profile.export_chrome_trace(str(path))
            except (RuntimeError, OSError) as error:
                raise CaptureError(
                    "The profiler's events could not be written out.",
                    why=str(error).splitlines()[0],
                    fix="see that the temporary directory has room (TMPDIR), or record fewer steps: --steps 5",
                ) from error
            return trace.read(path, name=name)


def _sync_events() -> Any:
    """CUDA synchronisation events tell who waited for whom; a private option, absent in some builds."""
    from torch._C import _profiler

    try:
        return _profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    except TypeError:
        return None


@contextlib.contextmanager
def stepping_aside(aside: Any) -> Iterator[None]:
    """While this lasts, `aside()` is called just before a profiler that is not ours starts.

    Two PyTorch profilers cannot record at once: the outer one silently gets nothing. The user's own has precedence.
    """
    import torch.autograd.profiler

    torch_profiler: Any = torch.autograd.profiler
    prepare = getattr(torch_profiler, "_prepare_profiler", None)
    if prepare is None:  # another torch: the loss is then noticed at stop()
        yield
        return

    def prepared(*args: Any, **kwargs: Any) -> Any:
        if not _ours(sys._getframe(1)):
            aside()
        return prepare(*args, **kwargs)

    torch_profiler._prepare_profiler = prepared
    try:
        yield
    finally:
        torch_profiler._prepare_profiler = prepare


def _ours(frame: Any) -> bool:
    while frame is not None:
        if frame.f_code is Stretch.start.__code__:
            return True
        frame = frame.f_back
    return False


__all__ = ["Stretch", "has_cuda", "quiet_kineto", "someone_profiles", "stepping_aside", "warm_up"]
