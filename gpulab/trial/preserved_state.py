"""Put the user's variables and the settings of the process back after a run of a cell."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpulab.capture.seeds import preserve_random_state


@contextlib.contextmanager
def preserved_variables(namespace: dict[str, Any], copies: dict[str, Any]) -> Iterator[None]:
    """Put copies of objects in place of the user's variables, and the variables back at the end.

    The namespace itself stays the same object, because the user's functions and classes look up names in it.
    """
    variables = dict(namespace)
    namespace.update(copies)
    try:
        yield
    finally:
        for name in set(namespace) - set(variables):
            del namespace[name]
        namespace.update(variables)


@contextlib.contextmanager
def preserved_settings() -> Iterator[None]:
    """Restore the settings of the process that training code and fixes change, random numbers and open figures."""
    with preserve_random_state(), contextlib.ExitStack() as stack:
        stack.callback(_restore_environment, Path.cwd(), dict(os.environ), list(sys.path))
        stack.callback(gc.enable if gc.isenabled() else gc.disable)
        stack.callback(gc.set_threshold, *gc.get_threshold())
        if not gc.get_freeze_count():
            stack.callback(gc.unfreeze)
        for restore, value in _torch_settings():
            stack.callback(restore, value)
        stack.enter_context(_preserved_blas_threads())
        if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
            stack.callback(_close_new_figures, pyplot, set(pyplot.get_fignums()))
        yield


def _preserved_blas_threads() -> contextlib.AbstractContextManager[object]:
    """Restore the number of threads of NumPy's BLAS; a fix changes it by threadpoolctl, which gpulab does not need."""
    try:
        threadpoolctl = importlib.import_module("threadpoolctl")
    except ImportError:
        return contextlib.nullcontext()
    limits: contextlib.AbstractContextManager[object] = threadpoolctl.threadpool_limits(None, user_api="blas")
    return limits


def _torch_settings() -> list[tuple[Callable[[Any], Any], Any]]:
    """Return PyTorch's settings: the function that sets each, and its value."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    return [
        (torch.set_num_threads, torch.get_num_threads()),
        (torch.set_default_dtype, torch.get_default_dtype()),
        (torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()),
        (torch.set_grad_enabled, torch.is_grad_enabled()),
        (
            lambda values: torch.autograd.set_detect_anomaly(*values),
            (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        ),
        (torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode()),
        (lambda value: setattr(torch.backends.cudnn, "benchmark", value), torch.backends.cudnn.benchmark),
        (lambda value: setattr(torch.backends.cudnn, "allow_tf32", value), torch.backends.cudnn.allow_tf32),
    ]


def _restore_environment(folder: Path, variables: dict[str, str], path: list[str]) -> None:
    os.chdir(folder)
    for name in set(os.environ) - set(variables):
        del os.environ[name]
    os.environ.update(variables)
    sys.path[:] = path


def _close_new_figures(pyplot: Any, before: set[int]) -> None:
    for number in set(pyplot.get_fignums()) - before:
        pyplot.close(number)
