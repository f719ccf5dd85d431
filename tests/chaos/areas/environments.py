"""Hostile environments: few descriptors, full or read-only file systems, odd locales, no home, little memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import locale
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chaos.areas.objects import PARTS
from tests.chaos.areas.objects.loop import Oddity, train
from tests.chaos.program import Log, Program, Undo
from tests.chaos.recorders import PROFILERS

Prepare = Callable[[], Undo]
_NEW_MOUNTS, _PRIVATE, _BIND, _REMOUNT, _READ_ONLY = 0x20000, 0x44000, 0x1000, 0x20, 0x1
_NOBODY = 65534


def _keep(_: Any = None) -> None:
    """Undo nothing."""


def _limit(kind: int, soft: Callable[[], int]) -> Prepare:
    def prepare() -> Undo:
        before = resource.getrlimit(kind)
        resource.setrlimit(kind, (soft(), before[1]))
        return lambda: resource.setrlimit(kind, before)

    return prepare


def _open_files(more: int) -> Prepare:
    return _limit(resource.RLIMIT_NOFILE, lambda: max(map(int, os.listdir("/proc/self/fd"))) + 1 + more)


def _memory(more_mib: int) -> Prepare:
    pages = lambda: int(Path("/proc/self/statm").read_text().split()[0])  # noqa: E731
    return _limit(resource.RLIMIT_AS, lambda: pages() * resource.getpagesize() + more_mib * 2**20)


def _variables(**values: str | None) -> Prepare:
    def prepare() -> Undo:
        before = {name: os.environ.get(name) for name in values}
        for name, value in values.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        tempfile.tempdir = None

        def undo() -> None:
            for name, value in before.items():
                os.environ.pop(name, None) if value is None else os.environ.update({name: value})
            tempfile.tempdir = None

        return undo

    return prepare


def _mount(*arguments: Any) -> None:
    source, target, kind, flags, data = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source, target, kind, flags, data):
        raise OSError(ctypes.get_errno(), "mount")


def _own_mounts() -> None:
    """Give this process mounts of its own. Raises OSError where this is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS):
        raise OSError(ctypes.get_errno(), "unshare")
    _mount(None, b"/", None, _PRIVATE, None)


def _full_tmpfs(free_kib: int) -> Prepare:
    """A TMPDIR of so many KiB, or no more space than a limit of the file size where mounting is not allowed."""

    def prepare() -> Undo:
        folder = os.environ["TMPDIR"].encode()
        try:
            _own_mounts()
            _mount(b"tmpfs", folder, b"tmpfs", 0, f"size={max(free_kib, 4)}k".encode())
        except OSError:
            return _limit(resource.RLIMIT_FSIZE, lambda: free_kib * 1024)()
        if not free_kib:
            Path(os.fsdecode(folder), "full").write_bytes(b"x" * 4096)
        return _keep

    return prepare


def _read_only_everywhere() -> Undo:
    with contextlib.suppress(OSError):
        _own_mounts()
        _mount(None, b"/", None, _BIND | _REMOUNT | _READ_ONLY, None)
    return _keep


def _as_nobody(*read_only: str) -> Prepare:
    """Another user, who may not write into these folders of the probe."""

    def prepare() -> Undo:
        root = Path(os.environ["TMPDIR"]).parent
        for folder in (root, *root.iterdir()):
            shutil.chown(folder, _NOBODY, _NOBODY)
        for name in read_only:
            (root / name).chmod(0o555)
        os.setresgid(_NOBODY, _NOBODY, 0)
        os.setresuid(_NOBODY, _NOBODY, 0)

        def undo() -> None:
            os.setresuid(0, 0, 0)
            os.setresgid(0, 0, 0)

        return undo

    return prepare if os.getuid() == 0 else _variables()


def _temporary_folder(kind: str) -> Prepare:
    def prepare() -> Undo:
        folder = Path(os.environ["TMPDIR"])
        if kind == "missing":
            folder.rmdir()
        elif kind == "a file":
            folder.rmdir()
            folder.write_text("")
        elif kind == "a broken link":
            folder.rmdir()
            folder.symlink_to("nowhere")
        tempfile.tempdir = str(folder)  # as it was chosen before it went
        return _keep

    return prepare


def _no_working_directory() -> Undo:
    folder = Path.cwd() / "gone"
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()
    return _keep


def _closed(*numbers: int) -> Prepare:
    def prepare() -> Undo:
        copies = {number: os.dup(number) for number in numbers}
        for number in numbers:
            os.close(number)

        def undo() -> None:
            for number, copy in copies.items():
                os.dup2(copy, number)
                os.close(copy)

        return undo

    return prepare


def _streams(value: Any) -> Prepare:
    def prepare() -> Undo:
        before = sys.stdout, sys.stderr
        sys.stdout = sys.stderr = value()

        def undo() -> None:
            sys.stdout, sys.stderr = before

        return undo

    return prepare


class _BrokenStream:
    """A stream whose methods raise."""

    def write(self, _: str) -> int:
        raise Oddity("write")

    def flush(self) -> None:
        raise Oddity("flush")

    encoding = "latin-1"


def _recursion_limit(more: int) -> Prepare:
    def prepare() -> Undo:
        before, depth, frame = sys.getrecursionlimit(), 0, sys._getframe()
        while frame is not None:
            depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
        sys.setrecursionlimit(depth + more)
        return lambda: sys.setrecursionlimit(before)

    return prepare


def _locale(name: str) -> Prepare:
    def prepare() -> Undo:
        before = locale.setlocale(locale.LC_ALL)
        with contextlib.suppress(locale.Error):
            locale.setlocale(locale.LC_ALL, name)
        return lambda: _keep(locale.setlocale(locale.LC_ALL, before))

    return prepare


def _umask(mask: int) -> Prepare:
    def prepare() -> Undo:
        before = os.umask(mask)
        return lambda: _keep(os.umask(before))

    return prepare


def _handlers(handler: Any, *numbers: signal.Signals) -> Prepare:
    def prepare() -> Undo:
        before = [signal.signal(number, handler) for number in numbers]

        def undo() -> None:
            for number, old in zip(numbers, before, strict=True):
                signal.signal(number, old)

        return undo

    return prepare


def _blocked_signals() -> Undo:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    return lambda: _keep(signal.pthread_sigmask(signal.SIG_SETMASK, before))


def _warnings(action: Any) -> Prepare:
    def prepare() -> Undo:
        context = warnings.catch_warnings()
        context.__enter__()
        warnings.simplefilter(action)
        return lambda: context.__exit__(None, None, None)

    return prepare


def _no_threads() -> Undo:
    """Threads cannot start."""
    before = threading.Thread.start

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threading.Thread.start = start  # type: ignore[method-assign]

    def undo() -> None:
        threading.Thread.start = before  # type: ignore[method-assign]

    return undo


def _no_gc() -> Undo:
    gc.disable()
    return gc.enable


def _one_core() -> Undo:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    return lambda: os.sched_setaffinity(0, before)


ENVIRONMENTS: dict[str, Prepare] = {
    **{f"{number} more descriptors": _open_files(number) for number in (0, 1, 2, 3, 4, 6, 8, 12, 20)},
    **{f"files of {size} bytes": _limit(resource.RLIMIT_FSIZE, lambda size=size: size) for size in (0, 1, 512, 20_000)},  # type: ignore[misc]
    **{f"{size} KiB of temporary space": _full_tmpfs(size) for size in (0, 4, 16, 64, 256)},
    **{f"temporary folder is {kind}": _temporary_folder(kind) for kind in ("missing", "a file", "a broken link")},
    "TMPDIR is missing": _variables(TMPDIR="/nowhere/at/all"),
    "TMPDIR is empty": _variables(TMPDIR=""),
    "TMPDIR is relative": _variables(TMPDIR="."),
    "TMPDIR is long": _variables(TMPDIR="/tmp/" + "x" * 4000),
    "TMPDIR is a device": _variables(TMPDIR="/dev/null"),
    "everything is read-only": _read_only_everywhere,
    "nobody": _as_nobody(),
    "nobody, temporary folder read-only": _as_nobody("tmp"),
    "nobody, home read-only": _as_nobody("home"),
    "nobody, all read-only": _as_nobody("tmp", "home", "work"),
    "no HOME": _variables(HOME=None),
    "HOME is missing": _variables(HOME="/nowhere/at/all"),
    "HOME is a device": _variables(HOME="/dev/null"),
    "no PATH": _variables(PATH=None),
    "working directory is gone": _no_working_directory,
    "stdout is closed": _closed(1),
    "stderr is closed": _closed(2),
    "stdin is closed": _closed(0),
    "all streams are closed": _closed(0, 1, 2),
    "streams are none": _streams(lambda: None),
    "streams raise": _streams(_BrokenStream),
    **{f"recursion limit {more}": _recursion_limit(more) for more in (60, 90, 120, 160, 220)},
    **{f"{size} MiB more memory": _memory(size) for size in (2, 6, 16, 64, 200)},
    "no core files, small stack": _limit(resource.RLIMIT_STACK, lambda: 256 * 1024),
    "few locked pages": _limit(resource.RLIMIT_MEMLOCK, lambda: 0),
    "locale C": _locale("C"),
    "locale C.utf8": _locale("C.utf8"),
    "odd locale variables": _variables(LC_ALL="xx_YY.ODD", LANG="\udcff", LANGUAGE="x" * 1000),
    "odd CUDA variables": _variables(CUDA_VISIBLE_DEVICES="7,-3,GPU-x,", NVIDIA_VISIBLE_DEVICES="void"),
    "no CUDA devices": _variables(CUDA_VISIBLE_DEVICES=""),
    "odd Kineto variables": _variables(KINETO_LOG_LEVEL="odd", KINETO_CONFIG="/nowhere", KINETO_USE_DAEMON="x"),
    "odd variables of ranks": _variables(RANK="x", WORLD_SIZE="-1", LOCAL_RANK="9" * 40, MASTER_PORT="port"),
    "odd terminal": _variables(TERM="odd", COLUMNS="x", LINES="-1", NO_COLOR="1"),
    "odd history": _variables(GPULAB_HISTORY="/dev/full", GPULAB_PROGRESS="\n"),
    "umask 777": _umask(0o777),
    "umask 0": _umask(0),
    "signals ignored": _handlers(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD),
    "signals blocked": _blocked_signals,
    "warnings are errors": _warnings("error"),
    "no threads": _no_threads,
    "no garbage collection": _no_gc,
    "one core": _one_core,
}


def make(number: int, dice: random.Random) -> Program:
    """Return the program of this number: each environment with each recorder, then with odd parts."""
    environments, recorders = sorted(ENVIRONMENTS), sorted(PROFILERS)
    environment = environments[number % len(environments)]
    recorder = recorders[number // len(environments) % len(recorders)]
    choice = dice.choice(sorted(_PROGRAMS))
    loader = dice.choice(("ordinary", "ordinary", "no length", "shuffled"))

    def run(log: Log) -> Any:
        dataset = PARTS["dataset"]["ordinary"](log)
        parts = PARTS["loader"][loader](log, dataset), (module := PARTS["module"]["ordinary"](log))
        return _PROGRAMS[choice](log, *parts, PARTS["optimizer"]["ordinary"](log, module))

    name = f"{environment}, {choice}" + (f", loader {loader}" if loader != "ordinary" else "")
    size = 1 + (choice != "trains") + (loader != "ordinary")
    return Program(name=name, recorder=recorder, run=run, prepare=ENVIRONMENTS[environment], size=size)


def _trains_and_fails(log: Log, *parts: Any) -> Any:
    train(log, *parts)
    raise Oddity("of the program")


def _uses_files(log: Log, *parts: Any) -> Any:
    """Write a checkpoint if the environment lets it."""
    result = train(log, *parts)
    try:
        Path("checkpoint").write_bytes(b"x" * 300)
        log.note("written")
    except OSError as error:
        log.note(f"not written: {error.errno}")
    return result


_PROGRAMS: dict[str, Callable[..., Any]] = {
    "trains": train,
    "fails": _trains_and_fails,
    "writes": _uses_files,
    "does nothing": lambda log, *_: log.note("nothing"),
}
