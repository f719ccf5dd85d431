"""Make the virtual GPU available in threads that the program starts, but not in DataLoader worker processes."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

from gpulab.virtual.device.torch_api.patches import patch_attributes


def install(stack: ExitStack, mode: Any, calls: Any) -> None:
    """Patch threads until the stack is closed; PyTorch's modes are thread-local."""
    import torch.utils.data._utils.worker as worker

    original = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def bootstrap(self: Any) -> None:
        if mode.closed:
            original(self)
            return
        with ExitStack() as modes:
            modes.enter_context(mode)
            modes.enter_context(calls)
            original(self)

    patch_attributes(stack, threading.Thread, _bootstrap_inner=bootstrap)
    _WORKER_LOOPS.append(worker._worker_loop)
    stack.callback(_WORKER_LOOPS.pop)
    patch_attributes(stack, worker, _worker_loop=worker_loop)


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
