"""Make the virtual GPU available in threads that the program starts, but not in DataLoader worker processes.

PyTorch's modes belong to a thread, and only that thread can leave them. Threads of a pool outlive the block in which
the pool was created, so they enter the modes for each task only.
"""

from __future__ import annotations

import concurrent.futures.thread
import multiprocessing.pool
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from gpulab.errors import CaptureError
from gpulab.virtual.device.torch_api.patches import patch_attributes


def install(stack: ExitStack, mode: Any, calls: Any) -> None:
    """Patch threads until the stack is closed; PyTorch's modes are thread-local."""
    import torch.utils.data._utils.worker as worker

    modes = ThreadModes(mode, calls)
    original = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    run_task: Callable[..., None] = concurrent.futures.thread._WorkItem.run

    def bootstrap(self: Any) -> None:
        if modes.closed or _is_pool_thread(self):
            modes.prepare_pool_thread(self)
            original(self)
        else:
            modes.run(original, self)

    def run(self: Any, *args: Any) -> None:
        modes.run(run_task, self, *args)

    patch_attributes(stack, threading.Thread, _bootstrap_inner=bootstrap)
    patch_attributes(stack, concurrent.futures.thread._WorkItem, run=run)
    _WORKER_LOOPS.append(worker._worker_loop)
    stack.callback(_WORKER_LOOPS.pop)
    patch_attributes(stack, worker, _worker_loop=worker_loop)


class ThreadModes:
    """The modes of a virtual GPU, for threads other than the one that created it."""

    def __init__(self, mode: Any, calls: Any) -> None:
        self._mode, self._calls = mode, calls
        self._creator = threading.get_ident()
        self._thread = threading.local()

    @property
    def closed(self) -> bool:
        """Whether the virtual GPU has ended."""
        return bool(self._mode.closed)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the function in the modes, unless this thread is in them or the virtual GPU has ended."""
        inside = getattr(self._thread, "inside", False) or threading.get_ident() == self._creator
        if self.closed or inside:
            return function(*args, **kwargs)
        with ExitStack() as stack:
            try:
                stack.enter_context(self._mode)
                stack.enter_context(self._calls)
            except CaptureError:  # it ended in this instant
                stack.close()
            self._thread.inside = True
            stack.callback(setattr, self._thread, "inside", False)
            return function(*args, **kwargs)

    def prepare_pool_thread(self, thread: Any) -> None:
        """Make a thread of a multiprocessing.pool.ThreadPool enter the modes for each task."""
        if not self.closed and thread._target is multiprocessing.pool.worker:  # type: ignore[attr-defined]
            tasks, *others = thread._args
            thread._args = (_Tasks(tasks, self), *others)


class _Tasks:
    """The queue from which a thread of a ThreadPool takes its tasks."""

    def __init__(self, queue: Any, modes: ThreadModes) -> None:
        self._queue, self._modes = queue, modes

    def get(self) -> Any:
        """The next task, to be run in the modes; None at the end."""
        task = self._queue.get()
        if task is None or self._modes.closed:
            return task
        job, index, function, args, kwargs = task
        return job, index, self._modes.run, (function, *args), kwargs


def _is_pool_thread(thread: Any) -> bool:
    """Whether the thread serves a pool and not one function of the program."""
    target = getattr(thread, "_target", None)
    module, name = getattr(target, "__module__", None), getattr(target, "__name__", "")
    if module == "multiprocessing.pool":
        return name == "worker" or name.startswith("_handle_")
    return module == "concurrent.futures.thread" and name == "_worker"


_WORKER_LOOPS: list[Any] = []  # PyTorch's own loop; workers find their function by name, so it cannot be a closure


def worker_loop(*args: Any, **kwargs: Any) -> None:
    """Run a DataLoader worker process without the inherited modes: it has no GPU and runs at full speed."""
    from torch.overrides import _get_current_function_mode_stack, _pop_mode
    from torch.utils._python_dispatch import _disable_current_modes
    from torch.utils.data._utils import worker

    loop = _WORKER_LOOPS[-1] if _WORKER_LOOPS else worker._worker_loop  # a spawned worker does not have the list
    for _ in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
        _pop_mode()  # type: ignore[no-untyped-call]
    with _disable_current_modes():
        loop(*args, **kwargs)
