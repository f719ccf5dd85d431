"""The state of this process that a recording could change: descriptors, threads, handlers, settings, patches."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import locale
import logging
import os
import random
import re
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.autograd.profiler
import torch.utils.data.dataloader
from torch.optim import optimizer as optimizers

SETTLE_S = 4.0  # threads and workers of the program may end a moment later
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}|(?<=\[)\d+(?=\])")
_RANDOM_NAME = re.compile(r"(tmp|gpulab)-?\w{8,}")
_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_TRANSIENT = ("fds", "threads", "tasks", "children", "files")
_IGNORED_PATCHES = {
    *("sys.last_exc", "sys.last_type", "sys.last_value", "sys.last_traceback"),
    # PyTorch imports this module when it first needs it.
    *("torch.profiler._cupti_monitor", "torch.autograd.profiler._cupti_monitor_module"),
}
CACHE_FOLDERS = ("home/.cache", "home/.cache/gpulab", "home/.cache/gpulab/recordings")
State = dict[str, Any]


def take(folder: Path) -> State:
    """Return the state now; `folder` holds the working directory, TMPDIR and HOME of this probe."""
    state: State = {}
    for name, read in _READERS.items():
        try:
            value = read()
        except Exception as error:
            value = f"{type(error).__name__}: {error}"
        state.update(
            {f"{name} {key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
        )
    state["files"] = sorted(_files(folder))
    state.update((f"patch {name}", value) for name, value in _patches())
    state.update((f"${name}", value) for name, value in os.environ.items())
    return state


def settle(folder: Path, before: State) -> State:
    """Return the state once nothing transient is left over, or after SETTLE_S."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        gc.collect()
        if all(before[name] == value for name, value in _transient(folder)):
            break
        time.sleep(0.02)
    return take(folder)


def _transient(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the parts of the state that may end a moment later."""
    yield from ((name, _READERS[name]()) for name in _TRANSIENT if name in _READERS)
    yield "files", sorted(_files(folder))


def changes(before: State, after: State) -> dict[str, tuple[str, str]]:
    """Return what differs, as text."""
    result = {}
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, "absent"), after.get(name, "absent")
        same = old is new if name.startswith("patch") else old == new
        if not same:
            result[name] = _text(old), _text(new)
    return result


def memory_bytes() -> tuple[int, int]:
    """Return the resident memory now and its peak."""
    status = Path("/proc/self/status").read_text()
    rss, peak = (int(re.search(rf"{name}:\s+(\d+)", status)[1]) for name in ("VmRSS", "VmHWM"))  # type: ignore[index]
    return rss * 1024, peak * 1024


def reset_peak() -> None:
    """Let the peak of resident memory start from its present value."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _text(value: Any) -> str:
    try:
        return _ADDRESS.sub("#", repr(value))[:300]
    except Exception as error:  # an object of the program
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"


def _fds() -> list[str]:
    paths = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            path = re.sub(r"\d+", "#", os.readlink(f"/proc/self/fd/{number}"))
            # A batch that a worker sent, or a font, which matplotlib keeps open.
            if not path.startswith("/dev/shm/torch_") and not path.endswith(".ttf"):
                paths.append(path)
    return sorted(paths)


def _children() -> int:
    return sum(len((task / "children").read_text().split()) for task in Path("/proc/self/task").iterdir())


def _files(folder: Path) -> Iterator[str]:
    for directory, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith("pymp-")]  # workers end in their own time
        relative = os.path.relpath(directory, folder)
        # Documented in SECURITY.md: the folder of recordings stays in the user's cache, empty.
        own = [] if relative in CACHE_FOLDERS else [relative + "/"]
        paths = [*own, *(os.path.join(relative, name) for name in names)]
        yield from (_RANDOM_NAME.sub(r"\1-#", path) for path in paths if path != "./")


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _threads() -> list[str]:
    return sorted(re.sub(r"\d+", "#", thread.name) for thread in threading.enumerate())


def _torch_settings() -> dict[str, Any]:
    return {
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "dtype": torch.get_default_dtype(),
        "device": str(torch.get_default_device()),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomaly detection": torch.is_anomaly_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "precision": torch.get_float32_matmul_precision(),
        "print options": vars(torch._tensor_str.PRINT_OPTS).copy(),
        "profiler runs": torch._C._autograd._profiler_enabled(),
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "cuda": torch.cuda.is_available(),
    }


def _random_states() -> dict[str, int]:
    return {
        "torch": hash(torch.get_rng_state().numpy().tobytes()),
        "random": hash(random.getstate()),
        "numpy": hash(repr(numpy.random.get_state())),
    }


def _hooks() -> dict[str, Any]:
    names = ("excepthook", "unraisablehook", "displayhook", "breakpointhook")
    return {
        **{name: getattr(sys, name) for name in names},
        "threading": threading.excepthook,
        "trace": (sys.gettrace(), threading.gettrace()),
        "profile": (sys.getprofile(), threading.getprofile()),
    }


def _gc() -> dict[str, Any]:
    return {
        "enabled": gc.isenabled(),
        "threshold": gc.get_threshold(),
        "debug": gc.get_debug(),
        "callbacks": list(gc.callbacks),
    }


_READERS: dict[str, Callable[[], Any]] = {
    "fds": _fds,
    "threads": _threads,
    "tasks": lambda: len(os.listdir("/proc/self/task")),
    "children": _children,
    "handler of": lambda: {str(number): signal.getsignal(number) for number in signal.valid_signals()},
    "signal mask": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []),
    "timers": lambda: [signal.getitimer(kind)[0] > 0 for kind in (signal.ITIMER_REAL, signal.ITIMER_PROF)],
    "hooks": _hooks,
    "streams": lambda: (sys.stdout, sys.stderr, sys.stdin),
    "recursion limit": sys.getrecursionlimit,
    "switch interval": sys.getswitchinterval,
    "import system": lambda: (list(sys.path), list(sys.meta_path), list(sys.path_hooks)),
    "faulthandler": faulthandler.is_enabled,
    "gc": _gc,
    "warnings": lambda: (list(warnings.filters), warnings.showwarning),
    "logging": lambda: (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
    "atexit": lambda: atexit._ncallbacks(),
    "locale": lambda: locale.setlocale(locale.LC_ALL),
    "umask": _umask,
    "cwd": os.getcwd,
    "niceness": lambda: os.nice(0),
    "cores": lambda: os.sched_getaffinity(0),
    "limits": lambda: [resource.getrlimit(limit) for limit in _LIMITS],
    "torch settings": _torch_settings,
    "random states": _random_states,
    "optimizer hooks": lambda: (
        list(optimizers._global_optimizer_pre_hooks.values()),
        list(optimizers._global_optimizer_post_hooks.values()),
    ),
}


def _owners() -> list[tuple[str, Any]]:
    data = torch.utils.data.dataloader
    classes: list[Any] = [torch.Tensor, torch.nn.Module, torch.nn.Parameter, torch.optim.Optimizer]
    classes += [data.DataLoader, data._BaseDataLoaderIter, data._SingleProcessDataLoaderIter]
    classes += [data._MultiProcessingDataLoaderIter, torch.autograd.profiler.profile, torch.profiler.profile]
    names = (
        "torch torch.cuda torch.cuda.memory torch.nn.functional torch.nn.init torch.autograd torch.autograd.profiler"
    )
    names += " torch.profiler torch.utils.data.dataloader torch.optim.optimizer torch.backends.cudnn torch.amp"
    names += " gc time os threading signal subprocess multiprocessing.queues sys builtins warnings"
    modules = [(name, sys.modules[name]) for name in names.split() if name in sys.modules]
    return [*((each.__qualname__, each) for each in classes), *modules]


def _patches() -> Iterator[tuple[str, Any]]:
    for owner, value in _owners():
        for name, attribute in list(vars(value).items()):
            if not isinstance(attribute, int | float | str | tuple) and f"{owner}.{name}" not in _IGNORED_PATCHES:
                yield f"{owner}.{name}", attribute
