"""A simulated week of eight GPUs in gpulab's history, and what a rule that stops idle processes would have done in it.

Planted are processes that were left behind, and others that only look like it: a validation on the CPU, a server that
waits for requests, an interactive session whose owner comes back, an X server that holds hardly any memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpulab.watch.database import open_to_write
from gpulab.watch.schema import MINUTES

if TYPE_CHECKING:
    import sqlite3

    from gpulab.watch.usage import Usage

Reals = NDArray[np.float64]
Column = NDArray[np.floating[Any]] | float
HOUR_MIN, DAY_MIN, WEEK_MIN = 60, 1440, 7 * 1440
GIB = 2**30
IDLE_FRAC = 0.05
_HOST = "node"


@dataclass(frozen=True, kw_only=True, eq=False)
class ProcessStay:
    """A process on a GPU: its utilisation in each minute from `first_min` on, and the memory that it holds."""

    name: str
    user: str
    gpu: int
    first_min: int
    use: Reals
    memory_gib: float
    is_interactive: bool = False

    @property
    def idle_min(self) -> NDArray[np.int64]:
        """In each minute, the minutes since the last one with work, or since the begin."""
        position = np.arange(len(self.use))
        last = np.maximum.accumulate(np.where(self.use >= IDLE_FRAC, position, -1))
        return np.asarray(position - last, np.int64)


@dataclass(frozen=True, kw_only=True)
class IdleState:
    """What a reaper knows about a process in one minute."""

    name: str
    user: str
    idle_min: int
    memory_gib: float


MayStop = Callable[[IdleState], bool]


@dataclass(frozen=True, kw_only=True)
class StoppedProcess:
    """A process that a rule stops: when, how many GPU-hours it gives back, and whether it would have worked again."""

    stay: ProcessStay
    at_min: int
    returned_h: float
    would_have_worked: bool


@dataclass(frozen=True, kw_only=True)
class ReaperOutcome:
    """What a rule stops in the week."""

    stopped: tuple[StoppedProcess, ...]
    idle_h: float  # of all processes that hold memory, without the rule

    @property
    def returned_h(self) -> float:
        """Idle GPU-hours that were given back, without those of processes that would have worked again."""
        return sum(one.returned_h for one in self.stopped if not one.would_have_worked)

    @property
    def wrong(self) -> tuple[str, ...]:
        """Names of processes that would have worked again."""
        return tuple(one.stay.name for one in self.stopped if one.would_have_worked)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all processes that were stopped."""
        return tuple(one.stay.name for one in self.stopped)


def _busy(generator: np.random.Generator, minutes: int, level: float = 0.85) -> Reals:
    return np.asarray(np.clip(generator.normal(level, 0.05, minutes), 0.1, 1), np.float64)


def _then_idle(generator: np.random.Generator, work_min: int, idle_min: int) -> Reals:
    return np.concatenate((_busy(generator, work_min), np.zeros(idle_min)))


def _with_pauses(generator: np.random.Generator, minutes: int, every: int, pause: int) -> Reals:
    use = _busy(generator, minutes)
    for start in range(every, minutes - pause - 1, every + pause):
        use[start : start + pause] = 0.0
    return use


def generated_stays(seed: int = 0) -> tuple[ProcessStay, ...]:
    """Return the processes of the week."""
    generator = np.random.default_rng(seed)

    def stay(name: str, user: str, gpu: int, first_h: float, use: Reals, gib: float, **facts: bool) -> ProcessStay:
        first = int(first_h * HOUR_MIN)
        return ProcessStay(
            name=name, user=user, gpu=gpu, first_min=first, use=use[: WEEK_MIN - first], memory_gib=gib, **facts
        )

    session = np.concatenate((_busy(generator, 240), np.zeros(5 * HOUR_MIN), _busy(generator, 300)))
    server = np.where(np.arange(6 * DAY_MIN) % 100 < 8, 0.4, 0.0)
    return (
        stay("pretrain.py", "ada", 0, 2, _busy(generator, 6 * DAY_MIN), 62),
        stay("finetune.py", "ada", 1, 5, _with_pauses(generator, 4 * DAY_MIN, 300, 45), 48),  # validates on the CPU
        stay("explore.ipynb", "bob", 2, 9, _then_idle(generator, 200, WEEK_MIN), 31, is_interactive=True),
        stay("debug session", "eve", 3, 10, session, 24, is_interactive=True),  # has a checkpoint, comes back
        stay("sweep.py", "bob", 4, 20, _then_idle(generator, 600, 52 * HOUR_MIN), 40),  # hangs in a collective
        stay("serve.py", "ops", 5, 1, server, 16),
        stay("Xorg", "root", 6, 0, np.zeros(WEEK_MIN), 0.05),
        stay("old_eval.py", "eve", 7, 30, _then_idle(generator, 90, 4 * DAY_MIN), 12),
        stay("pretrain.py", "eve", 6, 40, _busy(generator, 4 * DAY_MIN), 70),
    )


def reap(may_stop: MayStop, stays: Iterable[ProcessStay] | None = None) -> ReaperOutcome:
    """Apply a rule to each process in each minute of the week; a process that is stopped stays stopped."""
    stays = generated_stays() if stays is None else tuple(stays)
    holding = [stay for stay in stays if stay.memory_gib >= 0.1]
    idle_h = sum(float((stay.use < IDLE_FRAC).sum()) for stay in holding) / HOUR_MIN
    return ReaperOutcome(stopped=tuple(_stopped(stays, may_stop)), idle_h=idle_h)


def _stopped(stays: Iterable[ProcessStay], may_stop: MayStop) -> Iterator[StoppedProcess]:
    for stay in stays:
        for minute, idle_min in enumerate(stay.idle_min.tolist()):
            state = IdleState(name=stay.name, user=stay.user, idle_min=idle_min, memory_gib=stay.memory_gib)
            if idle_min > 0 and may_stop(state):
                later = stay.use[minute + 1 :]
                yield StoppedProcess(
                    stay=stay,
                    at_min=stay.first_min + minute,
                    returned_h=float((later < IDLE_FRAC).sum()) / HOUR_MIN,
                    would_have_worked=bool((later >= IDLE_FRAC).any()),
                )
                break


def write_idle_week(path: Path, stays: Iterable[ProcessStay] | None = None, until_s: float | None = None) -> float:
    """Write the week into a history that ends now, and return its begin; `gpulab.history(path=path)` shows it."""
    stays = generated_stays() if stays is None else tuple(stays)
    start_s = (int(time.time() if until_s is None else until_s) // 60 - WEEK_MIN) * 60.0
    with closing(open_to_write(path)) as connection:
        connection.execute("BEGIN")
        connection.execute(
            "INSERT INTO device VALUES (NULL, ?, ?, 'host', 'node', NULL, NULL, NULL, NULL)", (_HOST, _HOST)
        )
        for gpu in range(max(stay.gpu for stay in stays) + 1):
            here = [stay for stay in stays if stay.gpu == gpu]
            _write_gpu(connection, gpu + 2, here, start_s)
        connection.execute("COMMIT")
    return start_s


def _write_gpu(connection: sqlite3.Connection, device: int, stays: list[ProcessStay], start_s: float) -> None:
    connection.execute(
        "INSERT INTO device VALUES (?, ?, ?, 'gpu', 'H100', ?, 700, 1980, '580')",
        (device, _HOST, f"GPU-{device - 2}", 80 * GIB),
    )
    use, is_held, memory = np.zeros(WEEK_MIN), np.zeros(WEEK_MIN, bool), np.full(WEEK_MIN, 0.5 * GIB)
    for stay in stays:
        span = slice(stay.first_min, stay.first_min + len(stay.use))
        use[span], is_held[span] = np.maximum(use[span], stay.use), True
        memory[span] += stay.memory_gib * GIB
    for number, stay in enumerate(stays):
        _write_process(connection, device, number, stay, use, start_s)
    columns: dict[str, Column] = {
        "at_s": start_s + 60 * np.arange(WEEK_MIN),
        "device": device,
        "covered_s": 60.0,
        "held_s": 60.0 * is_held,
        "held_idle_s": 60.0 * (is_held & (use < IDLE_FRAC)),
        "util_frac": use,
        "memory_used_bytes": memory,
        "power_w": 90 + 560 * use,
        "energy_j": np.cumsum(60 * (90 + 560 * use)),
    }
    _insert_columns(connection, MINUTES.device_table, columns)


def _write_process(
    connection: sqlite3.Connection, device: int, number: int, stay: ProcessStay, use: Reals, start_s: float
) -> None:
    started_s = start_s + 60.0 * stay.first_min
    pid = 1000 * device + number
    row = (_HOST, pid, started_s, stay.user, stay.name, str(pid))
    process = connection.execute("INSERT INTO process VALUES (NULL, ?, ?, ?, ?, ?, ?)", row).lastrowid
    columns: dict[str, Column] = {
        "at_s": started_s + 60 * np.arange(len(stay.use)),
        "device": device,
        "process": float(process or 0),
        "memory_bytes": stay.memory_gib * GIB,
        "sm_frac": stay.use,
        "covered_s": 60.0,
        "idle_s": 60.0 * (stay.use < IDLE_FRAC),
        "device_util_frac": use[stay.first_min : stay.first_min + len(stay.use)],
    }
    _insert_columns(connection, MINUTES.process_table, columns)


def _insert_columns(connection: sqlite3.Connection, table: str, columns: Mapping[str, Column]) -> None:
    """Insert columns of equal length; a plain number is repeated."""
    length = max(len(values) for values in columns.values() if isinstance(values, np.ndarray))
    lists = [values.tolist() if isinstance(values, np.ndarray) else [values] * length for values in columns.values()]
    marks = ", ".join("?" * len(columns))
    connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", zip(*lists, strict=True))


def process_report(path: Path) -> tuple[Usage, ...]:
    """Return how long each program of each user held GPUs and used them, most idle hours first."""
    from gpulab.hardware.prices import user_prices
    from gpulab.watch.history import GpuHistory
    from gpulab.watch.patterns.frame import HistoryFrame
    from gpulab.watch.usage import job_usage

    with GpuHistory(path) as history:
        begin_s, end_s = history.span() or (0, 0)
        frame = HistoryFrame.load(history, begin_s, end_s + 60)
    return tuple(sorted(job_usage(frame, user_prices()), key=lambda one: -one.idle_h))
