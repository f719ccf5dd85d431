"""One run of a program in a child process of its own, observed from inside."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import random
import re
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy
import torch

import gpulab
from tests.chaos import recorders, snapshot
from tests.chaos.program import Log, Observation, Outcome, Program

PACKAGE = str(Path(gpulab.__file__).parent)
_HERE = str(Path(__file__).parent)
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_PROCESS = re.compile(r"(?<=pid )\d+|(?<=pid\(s\) )\d+")
_LONGEST_CHAIN = 6


def run_child(program: Program, folder: Path, pipe: int, *, plain: bool) -> None:
    """Run the program, write the observation to the pipe, and end this process."""
    os.setpgid(0, 0)
    for stream in (1, 2):
        output = os.memfd_create(f"stream{stream}")
        os.dup2(output, stream)
        os.close(output)
    trouble = os.dup(2)
    faulthandler.enable(trouble)
    sys.stdout, sys.stderr = (open(stream, "w", buffering=1, closefd=False) for stream in (1, 2))  # noqa: SIM115
    try:
        data = json.dumps(_observe(program, folder, plain=plain).to_json())
    except BaseException:
        data = json.dumps(Observation(Outcome(), trouble=f"the harness failed: {traceback.format_exc()}").to_json())
    signal.setitimer(signal.ITIMER_REAL, 0)
    written, encoded = 0, data.encode()
    while written < len(encoded):
        written += os.write(pipe, encoded[written:])
    os._exit(0)


def _observe(program: Program, folder: Path, *, plain: bool) -> Observation:
    _enter(folder)
    outputs = [os.dup(stream) for stream in (1, 2)]
    log = Log()
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    gc.collect()
    before = snapshot.take(folder)
    rss_bytes, _ = snapshot.memory_bytes()
    snapshot.reset_peak()
    undo = program.prepare() if program.prepare is not None else None
    process = os.getpid()
    try:
        outcome = _outcome(program, log, plain=plain)
    finally:
        if os.getpid() != process:  # a child that the program forked
            os._exit(0)
        if undo is not None:
            undo()
    _, peak_bytes = snapshot.memory_bytes()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    after = snapshot.settle(folder, before)
    rss_after_bytes, _ = snapshot.memory_bytes()
    changes = snapshot.changes(before, after)
    if not plain and (why := recorders.is_usable()):
        changes["usable"] = ("yes", why)
    stdout, stderr = (os.pread(output, 1 << 20, 0).decode(errors="replace") for output in outputs)
    return Observation(
        outcome,
        verdict=program.verdict(log, outcome) if program.verdict is not None else None,
        notes=log.notes,
        calls=dict(log.calls),
        stdout=_ADDRESS.sub("#", stdout),
        stderr=_ADDRESS.sub("#", stderr),
        changes=changes,
        rss_growth_bytes=rss_after_bytes - rss_bytes,
        peak_growth_bytes=peak_bytes - rss_bytes,
        recorded=log.recorded,
    )


def _enter(folder: Path) -> None:
    """Work in folders of this run."""
    for name in ("tmp", "home", "work"):
        (folder / name).mkdir(parents=True)
    os.chdir(folder / "work")
    # The history of named runs is a file that gpulab writes for its user: what else it leaves behind is the question.
    os.environ.update(HOME=str(folder / "home"), TMPDIR=str(folder / "tmp"), GPULAB_RUNS="off")
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        os.environ.pop(name, None)
    tempfile.tempdir = None
    warnings.filters.insert(0, ("always", None, Warning, None, 0))  # type: ignore[attr-defined]
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _outcome(program: Program, log: Log, *, plain: bool) -> Outcome:
    def record() -> Any:
        return recorders.record(program.recorder, lambda: program.run(log), log, plain=plain)

    try:
        value = record() if program.around is None else program.around(log, record)
        return Outcome(value=_text(value))
    except BaseException as error:
        outcome = Outcome(chain=_chain(error), origin=_origin(error))
        # The frames of the traceback hold the program's loaders and threads.
        traceback.clear_frames(error.__traceback__)
        return outcome


def _text(value: Any) -> str:
    try:
        return _PROCESS.sub("#", _ADDRESS.sub("#", repr(value)))[:4000]
    except BaseException as error:
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"


def _chain(error: BaseException | None) -> tuple[tuple[str, str, str], ...]:
    """The exception and those it was raised from or while handling."""
    links: list[tuple[str, str, str]] = []
    relation = "raised"
    while error is not None and len(links) < _LONGEST_CHAIN:
        # The message of a RecursionError depends on the call that was one too many.
        arguments = "()" if issubclass(type(error), RecursionError) else _text(error.args)
        links.append((relation, type(error).__qualname__, arguments))
        if error.__cause__ is not None:
            relation, error = "cause", error.__cause__
        else:
            relation, error = "context", error.__context__
    return tuple(links)


def _origin(error: BaseException) -> str:
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    files = [(frame.f_code.co_filename, frame.f_code.co_qualname) for frame in frames]  # type: ignore[attr-defined]
    ours = [f"{os.path.relpath(file, PACKAGE)}:{name}" for file, name in files if file.startswith(PACKAGE)]
    users = any(file.startswith(_HERE) and name.endswith(".run") for file, name in files)
    return (ours[-1] if ours else "") + (" (in the block)" if users else " (outside the block)")
