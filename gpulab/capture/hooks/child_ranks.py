"""Record the processes that the recorded code starts as ranks of a job, and collect their runs.

torch.multiprocessing.spawn and start_processes start them; Accelerate's notebook_launcher, torch.distributed's elastic
agent and Lightning's strategies for notebooks use the latter. Each child records itself and leaves a file.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpulab.capture.active_session import leave_to_child
from gpulab.capture.job_rank import rank_name
from gpulab.capture.protection.guard import is_from_outside
from gpulab.capture.protection.temporary_folder import temporary_folder
from gpulab.run import Run

_MODULES = ("torch.multiprocessing", "torch.multiprocessing.spawn")
_FUNCTION = "start_processes"
_SUFFIX = ".gpulab"


class ChildRanks:
    """Watches the start of ranks while the recorded code runs."""

    def __init__(self, session_class: Callable[..., Any], name: str, level: str, steps: int | None) -> None:
        self._session_class = session_class
        self._name, self._level, self._steps = name, level, steps
        self._original: Callable[..., Any] | None = None
        self._is_installed = False  # the program may keep our function longer
        self._folder: Path | None = None
        self._exit = contextlib.ExitStack()
        self._pid = os.getpid()
        self._starts = 0

    def install(self) -> None:
        """Replace start_processes; call it once torch is imported."""
        import torch.multiprocessing

        self._original = getattr(torch.multiprocessing, _FUNCTION)
        self._is_installed = True
        self._replace(self._original, self._start_processes)

    def remove(self) -> None:
        """Restore start_processes; does nothing if it is not replaced."""
        if self._original is not None:
            self._replace(self._start_processes, self._original)
            self._is_installed = False

    def collect(self) -> tuple[Run, ...]:
        """Return the runs of the children that recorded steps, by rank, also of killed ones; delete their files."""
        if self._folder is None or os.getpid() != self._pid:
            return ()
        try:
            runs = [_of_child(run) for run in (*_saved(self._folder), *_killed(self._folder)) if _has_work(run)]
        finally:
            self._folder = None
            self._exit.close()
        return tuple(sorted(runs, key=lambda run: -1 if run.rank is None else run.rank))

    def discard(self) -> None:
        """Delete the files of the children."""
        if os.getpid() == self._pid:
            self._folder = None
            self._exit.close()

    def _start_processes(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        assert self._original is not None
        if not self._is_installed or os.getpid() != self._pid:  # a child starts processes of its own
            return self._original(fn, *args, **kwargs)
        if self._folder is None:
            self._folder = self._exit.enter_context(temporary_folder())
        self._starts += 1
        stem = f"start{self._starts}"
        return self._original(
            RecordedRank(fn, self._session_class, self._folder, stem, self._name, self._level, self._steps),
            *args,
            **kwargs,
        )

    @staticmethod
    def _replace(old: Callable[..., Any], new: Callable[..., Any]) -> None:
        """Replace a function in every module that has it, unless the program has replaced it in between."""
        for name in _MODULES:
            module = sys.modules.get(name)
            if module is not None and getattr(module, _FUNCTION, None) == old:
                setattr(module, _FUNCTION, new)


@dataclass(frozen=True)
class RecordedRank:
    """The function of a rank, which records the process that calls it. It is sent to the process by pickle."""

    function: Callable[..., Any]
    session_class: Callable[..., Any]  # gpulab.capture.session.Session, which imports this module
    folder: Path
    stem: str
    name: str
    level: str
    steps: int | None

    def __call__(self, index: int, *args: Any) -> Any:
        """Call the function of rank `index`, recorded; a recording that fails does not affect it."""
        leave_to_child()
        session = _attempt(lambda: self._started(index))
        try:
            result = self.function(index, *args)
        except BaseException as error:
            failure = error  # `error` is deleted when this block ends
            if session is not None:
                _attempt(lambda: self._finish(session, index, failure))
            raise
        if session is not None:
            _attempt(lambda: self._finish(session, index, None))
        return result

    def _started(self, index: int) -> Any:
        copy = self.folder / f".{self.stem}-{index}"
        session = self.session_class(self.name, level=self.level, steps=self.steps, spool_folder=copy)
        session.start()
        return session

    def _finish(self, session: Any, index: int, error: BaseException | None) -> None:
        from gpulab import store

        try:
            run: Run = session.stop(error)
        finally:
            session.abandon()
        rank = index if run.rank is None and _has_peers(run) else run.rank
        store.save(replace(run, rank=rank), self.folder / f"{self.stem}-{index}{_SUFFIX}")


def _attempt(function: Callable[[], Any]) -> Any:
    """Call a function of gpulab in a child; None if it fails, as there is no place to say so."""
    try:
        return function()
    except Exception as problem:
        if is_from_outside(problem):
            raise
        return None


def _has_peers(run: Run) -> bool:
    return run.facts.get("world_size", "1") != "1"


def _has_work(run: Run) -> bool:
    """Whether a child computed: processes that prepare data, for example, leave a recording without steps."""
    return bool(len(run.mark_rows) or len(run.event_rows))


def _of_child(run: Run) -> Run:
    return run if run.rank is None else replace(run, name=f"{run.name}-{rank_name(run.rank)}")


def _saved(folder: Path) -> list[Run]:
    from gpulab import store

    return [store.open(path) for path in sorted(folder.glob(f"*{_SUFFIX}"))]


def _killed(folder: Path) -> list[Run]:
    """Return the runs of the children that were killed, from the copies that they left."""
    from gpulab.capture.spool.recovery import recover_from

    return [run for copy in sorted(folder.glob(".*")) if copy.is_dir() for run in recover_from(copy)]
