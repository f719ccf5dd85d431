"""What holds all Python code up for a while: garbage collections, and torch.compile at work."""

from __future__ import annotations

import gc
import re
import sys
import time
from collections.abc import Iterable
from typing import Any

from gpulab.rows import Rows
from gpulab.run import Gap
from gpulab.sensors.host.frames import user_line
from gpulab.tables import STALLS, StallKind

LEAST_NS = 20_000  # most collections are of the youngest objects and over in less: not kept, there can be millions
MOST = 200_000  # collections kept: a loop that has more of them in one cell has told enough
_CELL = re.compile(r"[/\\]ipykernel_\d+[/\\]\d+\.py$|^<ipython-input-\d+")
_FOLDERS = re.compile(r".*[/\\]")
_TORCH = re.compile(r"[/\\](site|dist)-packages[/\\]torch[/\\]")
_WHICH = re.compile(r"^\d+/\d+: ")  # PyTorch numbers what it compiled: "0/1: tensor 'x' size mismatch"

Row = tuple[int, int, int, str]  # kind, start, duration, what; times in UNIX ns


class Stalls:
    """Hears of every garbage collection between `install()` and `remove()`; asks torch.compile when all is over.

    A collection in any thread holds the interpreter, so all of them count. One costs two calls of about 0.3 us.
    """

    def __init__(self) -> None:
        self.gaps: list[Gap] = []
        self._collections: list[Row] = []
        self._began_ns = 0
        self._what = ""
        self._missed = 0

    def install(self) -> None:
        """Have the interpreter tell of collections."""
        gc.callbacks.append(self._heard)

    def remove(self) -> None:
        """Hear no more; harmless where it was not installed."""
        if self._heard in gc.callbacks:
            gc.callbacks.remove(self._heard)

    def rows(self, began_ns: int, ended_ns: int) -> Rows:
        """What was seen between two UNIX times, as rows of tables.STALLS in order of time."""
        told = [*self._collections, *self._compilations(began_ns)]
        kept = sorted((row for row in told if began_ns <= row[1] <= ended_ns), key=lambda row: row[1])
        if self._missed:
            self.gaps.append(_missed(self._missed))
        return STALLS.of(kept).shifted(-began_ns, "start_ns")

    def _heard(self, phase: str, info: dict[str, int]) -> None:
        """Python calls this before and after a collection; they do not nest."""
        if phase == "start":
            generation = info["generation"]
            self._what = f"generation {generation}"
            if generation == 2 and _asked_for():
                where = user_line(sys._getframe())
                self._what = f"gc.collect() in {where}" if where else "gc.collect()"
            self._began_ns = time.time_ns()
            return
        dur_ns = time.time_ns() - self._began_ns
        if not self._began_ns or dur_ns < LEAST_NS:
            return
        if len(self._collections) >= MOST:
            self._missed += 1
            return
        self._collections.append((StallKind.GC, self._began_ns, dur_ns, self._what))

    def _compilations(self, began_ns: int) -> list[Row]:
        """What torch.compile did since; empty where the cell never used it."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        if dynamo is None:
            return []
        try:
            metrics = list(dynamo.get_compilation_metrics())
            rows = [row for each in metrics if (row := _compilation(each)) is not None]
        except (AttributeError, TypeError) as error:  # a private interface: another PyTorch may have another one
            self.gaps.append(
                Gap(what="compilations", why=f"this PyTorch tells of them differently: {error}", fix="use torch 2.13")
            )
            return []
        mine = [row for row in rows if row[1] >= began_ns]
        if mine and len(mine) >= getattr(dynamo, "DEFAULT_COMPILATION_METRICS_LIMIT", len(mine) + 1):
            self.gaps.append(_only_the_latest(len(mine)))
        return mine


def _asked_for() -> bool:
    """Whether the collection that begins was asked for by gc.collect().

    Python itself begins one only when more objects were made than the first threshold allows.
    """
    return not gc.isenabled() or gc.get_count()[0] <= gc.get_threshold()[0]


def _compilation(told: Any) -> Row | None:
    """One entry of PyTorch's compilation metrics; None for one that says nothing of when it was."""
    start_us, took_us = getattr(told, "start_time_us", None), getattr(told, "duration_us", None)
    if start_us is None or took_us is None:  # up to 2.5 in seconds, and under other names
        start_s, took_s = getattr(told, "start_time", None), getattr(told, "entire_frame_compile_time_s", None)
        if start_s is None or took_s is None:
            return None
        start_us, took_us = int(start_s * 1e6), int(took_s * 1e6)
    return StallKind.COMPILE, start_us * 1000, took_us * 1000, _compiled(told)


def _compiled(told: Any) -> str:
    """Which function was compiled, and why again if it was not for the first time."""
    name, line = getattr(told, "co_name", None), getattr(told, "co_firstlineno", None)
    file = getattr(told, "co_filename", None) or ""
    place = f"cell line {line}" if _CELL.search(file) else f"{_FOLDERS.sub('', file)}:{line}"
    what = f"{name} ({place})" if name else "a graph"
    if _TORCH.search(file):  # a model is called through functions of PyTorch's own, whose names tell nobody anything
        what = "a module"
    if getattr(told, "is_forward", True) is False:
        what = f"the backward pass of {what}"
    reason = getattr(told, "recompile_reason", None)
    return f"{what}, again: {_first_line(reason)}" if reason else what


def _first_line(reason: str) -> str:
    lines: Iterable[str] = (line.strip() for line in reason.splitlines())
    return _WHICH.sub("", next((line for line in lines if line), ""))


def _missed(count: int) -> Gap:
    return Gap(
        what=f"{count:,} garbage collections",
        why=f"the cell had more than {MOST:,}, and only so many are kept",
        fix="nothing needs doing: those kept tell what they cost",
    )


def _only_the_latest(count: int) -> Gap:
    return Gap(
        what="the earlier compilations of torch.compile",
        why=f"PyTorch keeps the latest {count} only",
        fix="nothing needs doing, unless the cell compiled for most of its time: then profile a shorter part of it",
    )
