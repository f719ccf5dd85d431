"""Threads that the program starts: the virtual GPU is there for them too. Worker processes are left alone."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

from gpulab.virtual.device.torch_api.patches import swap


def install(stack: ExitStack, mode: Any, calls: Any) -> None:
    """Until the stack is closed; PyTorch's modes are a thread's own."""
    import torch.utils.data._utils.worker as worker

    plain = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def bootstrap(self: Any) -> None:
        if mode.closed:
            plain(self)
            return
        with ExitStack() as own:
            own.enter_context(mode)
            own.enter_context(calls)
            plain(self)

    swap(stack, threading.Thread, _bootstrap_inner=bootstrap)
    _LOOPS.append(worker._worker_loop)
    stack.callback(_LOOPS.pop)
    swap(stack, worker, _worker_loop=work)


_LOOPS: list[Any] = []  # PyTorch's own; a worker is started by the name of a function, so it cannot be bound to one


def work(*args: Any, **kwargs: Any) -> None:
    """A DataLoader's worker process, without the modes that it inherited: it has no GPU, and runs at full speed."""
    from torch.overrides import _get_current_function_mode_stack, _pop_mode
    from torch.utils._python_dispatch import _disable_current_modes
    from torch.utils.data._utils import worker

    loop = _LOOPS[-1] if _LOOPS else worker._worker_loop  # a spawned worker has nothing of ours
    for _ in _get_current_function_mode_stack():  # type: ignore[no-untyped-call]
        _pop_mode()  # type: ignore[no-untyped-call]
    with _disable_current_modes():
        loop(*args, **kwargs)
