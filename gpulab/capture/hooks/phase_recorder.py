"""Phases that code names while it runs: validation, checkpoint, generation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gpulab.phase_names import means_evaluation, means_training
from gpulab.rows import Rows
from gpulab.run import Gap
from gpulab.tables import PHASES

MAX_PHASES = 20_000  # so that memory does not grow: a loop may name a phase in every step
_MAX_NAME_LENGTH = 100  # characters

OpenPhase = tuple[str, int]  # name and start, in UNIX ns


class PhaseRecorder:
    """Records the phases of one thread; they may nest and overlap. Each costs a few microseconds."""

    def __init__(self, now_ns: Callable[[], int] = time.time_ns) -> None:
        self.thread = threading.get_ident()
        self._now_ns = now_ns
        self._count = 0
        self._open: dict[int, OpenPhase] = {}  # by number
        self._ended: list[tuple[str, int, int]] = []
        self._missing = 0
        self._spooled = 0  # phases that `new_rows` has returned

    def begin(self, name: str) -> int:
        """Begin a phase now and return its number; -1 in other threads than the recorded one."""
        if threading.get_ident() != self.thread:
            return -1
        self._count += 1
        text = str.__str__(name) if isinstance(name, str) else type(name).__name__  # no code of the user's runs
        self._open[self._count] = text[:_MAX_NAME_LENGTH], self._now_ns()
        return self._count

    def end(self, number: int) -> None:
        """End the phase of this number now; does nothing if it is not open."""
        phase = self._open.pop(number, None)
        if phase is None:
            return
        if len(self._ended) < MAX_PHASES:
            self._ended.append((*phase, self._now_ns()))
        else:
            self._missing += 1

    @property
    def open_phases(self) -> tuple[OpenPhase, ...]:
        """The phases that have not ended; callable from any thread."""
        return tuple(self._open.copy().values())

    def evaluates(self, *, trained: bool) -> bool:
        """Whether an evaluation within or after a training runs: its batches are no training steps.

        An evaluation alone, as that of a program that only predicts, has steps. `trained`: an optimizer has stepped.
        """
        names = [name for name, _ in self._open.values()]
        trains = trained or any([means_training(name) for name in names])
        return trains and any([means_evaluation(name) for name in names])

    @property
    def gaps(self) -> list[Gap]:
        """What was not recorded."""
        if not self._missing:
            return []
        fix = "name phases that are longer than a step"
        return [Gap(what=f"{self._missing:,} phases", why=f"gpulab keeps the first {MAX_PHASES:,}", fix=fix)]

    def rows(self, began_ns: int, ended_ns: int) -> Rows:
        """All phases, as rows of tables.PHASES; those that are open end with the run."""
        still_open = [(name, start_ns, max(start_ns, ended_ns)) for name, start_ns in self.open_phases]
        return PHASES.of([*self._ended, *still_open]).shifted(-began_ns, "start_ns", "end_ns")

    def new_rows(self) -> tuple[Rows]:
        """Phases that ended since the previous call, with UNIX times; callable from any thread."""
        ended = self._ended[self._spooled :]
        self._spooled += len(ended)
        return (PHASES.of(ended),)
