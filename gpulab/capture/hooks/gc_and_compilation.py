"""Record stalls of all Python code: garbage collection and torch.compile."""

from __future__ import annotations

import gc
import re
import sys
import time
from collections.abc import Iterable
from typing import Any

from gpulab.deferred_signals import deliver_again
from gpulab.rows import Rows
from gpulab.run import Gap
from gpulab.sensors.host.frames import user_line
from gpulab.tables import STALLS, StallKind

MIN_STALL_NS = (
    20_000  # shorter collections are not recorded: most are of the youngest objects, and there can be millions
)
MAX_COLLECTIONS = 50_000  # collections recorded per cell: more would not change the conclusion
_CELL = re.compile(r"[/\\]ipykernel_\d+[/\\]\d+\.py$|^<ipython-input-\d+")
_FOLDERS = re.compile(r".*[/\\]")
_TORCH = re.compile(r"[/\\](site|dist)-packages[/\\]torch[/\\]")
_ID_PREFIX = re.compile(r"^\d+/\d+: ")  # PyTorch numbers its compilations: "0/1: tensor 'x' size mismatch"

Row = tuple[int, int, int, str]  # kind, start, duration, description; times in UNIX ns


class StallRecorder:
    """Records garbage collections between `install()` and `remove()`, and torch.compile's compilations at the end.

    A collection in any thread holds the GIL, so all of them count. Each one costs two callbacks of about 0.3 us.
    """

    def __init__(self) -> None:
        self.gaps: list[Gap] = []
        self._collections: list[Row] = []
        self._began_ns = 0
        self._description = ""
        self._missed_count = 0
        self._position = 0  # number of collections that `new_rows` has returned

    def install(self) -> None:
        """Register the callback with the garbage collector."""
        gc.callbacks.append(self._on_gc)

    def remove(self) -> None:
        """Unregister the callback; does nothing if it is not registered."""
        if self._on_gc in gc.callbacks:
            gc.callbacks.remove(self._on_gc)

    def rows(self, began_ns: int, ended_ns: int) -> Rows:
        """Stalls between two UNIX times, as rows of tables.STALLS in order of time."""
        stalls = [*self._collections, *self._compilations(began_ns)]
        stalls = sorted((row for row in stalls if began_ns <= row[1] <= ended_ns), key=lambda row: row[1])
        if self._missed_count:
            self.gaps.append(_missed_gap(self._missed_count))
        return STALLS.of(stalls).shifted(-began_ns, "start_ns")

    def new_rows(self) -> tuple[Rows]:
        """Collections recorded since the previous call, with UNIX times; callable from any thread."""
        collections = self._collections[self._position :]
        self._position += len(collections)
        return (STALLS.of(collections),)

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        """Callback of the garbage collector, before and after a collection; collections do not nest.

        Python drops exceptions of such callbacks, also that of a signal handler which runs during ours.
        """
        try:
            self._note(phase, info)
        except BaseException as error:  # the signal arrives again, where its exception can pass
            deliver_again(error)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generation = info["generation"]
            self._description = f"generation {generation}"
            if generation == 2 and _is_explicit():
                line = user_line(sys._getframe())
                self._description = f"gc.collect() in {line}" if line else "gc.collect()"
            self._began_ns = time.time_ns()
            return
        dur_ns = time.time_ns() - self._began_ns
        if not self._began_ns or dur_ns < MIN_STALL_NS:
            return
        if len(self._collections) >= MAX_COLLECTIONS:
            self._missed_count += 1
            return
        self._collections.append((StallKind.GC, self._began_ns, dur_ns, self._description))

    def _compilations(self, began_ns: int) -> list[Row]:
        """Compilations of torch.compile since then; empty if it is not in use."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        if dynamo is None:
            return []
        try:
            metrics = list(dynamo.get_compilation_metrics())
            rows = [row for each in metrics if (row := _compilation(each)) is not None]
        except (AttributeError, TypeError) as error:  # a private interface, which may differ in another PyTorch
            self.gaps.append(
                Gap(
                    what="compilations",
                    why=f"this PyTorch reports compilation metrics in an unknown format: {error}",
                    fix="use torch 2.13",
                )
            )
            return []
        rows = [row for row in rows if row[1] >= began_ns]
        if rows and len(rows) >= getattr(dynamo, "DEFAULT_COMPILATION_METRICS_LIMIT", len(rows) + 1):
            self.gaps.append(_truncated_gap(len(rows)))
        return rows


def _is_explicit() -> bool:
    """Whether gc.collect() started the current collection.

    Python itself starts one only if more objects were allocated than the first threshold allows.
    """
    return not gc.isenabled() or gc.get_count()[0] <= gc.get_threshold()[0]


def _compilation(metric: Any) -> Row | None:
    """Convert one entry of PyTorch's compilation metrics; None if it has no time."""
    start_us, took_us = getattr(metric, "start_time_us", None), getattr(metric, "duration_us", None)
    if start_us is None or took_us is None:  # PyTorch up to 2.5: in seconds, under other names
        start_s, took_s = getattr(metric, "start_time", None), getattr(metric, "entire_frame_compile_time_s", None)
        if start_s is None or took_s is None:
            return None
        start_us, took_us = int(start_s * 1e6), int(took_s * 1e6)
    return StallKind.COMPILE, start_us * 1000, took_us * 1000, _compilation_text(metric)


def _compilation_text(metric: Any) -> str:
    """Describe which function was compiled, and the reason if it is a recompilation."""
    name, line = getattr(metric, "co_name", None), getattr(metric, "co_firstlineno", None)
    file = getattr(metric, "co_filename", None) or ""
    location = f"cell line {line}" if _CELL.search(file) else f"{_FOLDERS.sub('', file)}:{line}"
    description = f"{name} ({location})" if name else "a graph"
    if _TORCH.search(file):  # PyTorch's internal wrapper around a model: its name means nothing to the user
        description = "a module"
    if getattr(metric, "is_forward", True) is False:
        description = f"the backward pass of {description}"
    reason = getattr(metric, "recompile_reason", None)
    return f"{description}, again: {_first_line(reason)}" if reason else description


def _first_line(reason: str) -> str:
    lines: Iterable[str] = (line.strip() for line in reason.splitlines())
    return _ID_PREFIX.sub("", next(iter([line for line in lines if line]), ""))


def _missed_gap(count: int) -> Gap:
    return Gap(
        what=f"{count:,} garbage collections",
        why=f"the cell had more than {MAX_COLLECTIONS:,}, and gpulab records only that many",
        fix="nothing to do: the recorded ones show the cost",
    )


def _truncated_gap(count: int) -> Gap:
    return Gap(
        what="the earlier compilations of torch.compile",
        why=f"PyTorch keeps the latest {count} only",
        fix="nothing to do, unless the cell compiled most of the time: then profile a shorter part of it",
    )
