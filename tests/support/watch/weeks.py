"""Weeks of a history, written as minutes: jobs of random length on several GPUs, and patterns planted among them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np

from gpulab.watch.database import open_to_write
from gpulab.watch.schema import MINUTES

DAY_MIN, WEEK_MIN = 1440, 7 * 1440
START_S = int(datetime(2026, 5, 4).timestamp())  # a Monday, 0:00 local time
GIB = 2**30
TOTAL_BYTES = 80 * GIB


@dataclass
class Stay:
    """A process on a GPU from one minute to another; `use` is its utilisation in each minute."""

    first: int
    use: np.ndarray
    memory_bytes: np.ndarray
    name: str = "train.py"
    user: str = "ada"
    job: str = ""
    pid: int = 0


@dataclass
class Card:
    """One GPU: who was on it, and what its sensors read in each minute."""

    stays: list[Stay] = field(default_factory=list)
    clock_mhz: np.ndarray | None = None
    bits: np.ndarray | None = None
    celsius: np.ndarray | None = None


def work(rng: np.random.Generator, minutes: int, level: float | None = None) -> np.ndarray:
    """Utilisation of a job: a level of its own, noise that lasts some minutes, and now and then a short dip."""
    level = rng.uniform(0.55, 0.97) if level is None else level
    noise = np.convolve(rng.normal(0, 0.05, minutes + 4), np.ones(5) / 5, "valid")
    use = np.clip(level + noise, 0.02, 1.0)
    for start in np.flatnonzero(rng.random(minutes) < 1 / 400):
        use[start : start + int(rng.integers(1, 12))] = rng.uniform(0.0, 0.3)
    return use


def stay(first: int, use: np.ndarray, gib: float | np.ndarray = 40.0, **names) -> Stay:
    return Stay(first, use, np.broadcast_to(np.asarray(gib) * GIB, use.shape).astype(float), **names)


def ordinary(rng: np.random.Generator, minutes: int) -> Card:
    """Jobs of 1 to 30 hours with pauses, some of which keep their memory for a while after their work."""
    card, at = Card(), int(rng.integers(0, 600))
    while at < minutes:
        length = int(min(rng.exponential(600) + 60, 1800))
        use = work(rng, length)
        if rng.random() < 0.4:  # the kernel stays
            use = np.concatenate((use, np.zeros(int(rng.integers(5, 300)))))
        use = use[: minutes - at]
        name = str(rng.choice(["train.py", "finetune.py", "a notebook", "sweep.py"]))
        card.stays.append(stay(at, use, rng.uniform(5, 70), name=name, user=str(rng.choice(["ada", "bob", "eve"]))))
        at += len(use) + int(rng.exponential(200)) + 1
    return card


def write(path: Path, cards: list[Card], minutes: int, rng: np.random.Generator, events=()) -> None:
    """Write the minutes of all cards."""
    connection = open_to_write(path)
    connection.execute("BEGIN")
    connection.execute("INSERT INTO device VALUES (NULL, 'node', 'node', 'host', 'node', NULL, NULL, NULL, NULL)")
    pid = 1000
    for number, card in enumerate(cards):
        device = number + 2
        connection.execute(
            "INSERT INTO device VALUES (?, 'node', ?, 'gpu', 'H100', ?, 700, 1980, '580')",
            (device, f"GPU-{number}", TOTAL_BYTES),
        )
        use, held, memory = np.zeros(minutes), np.zeros(minutes, bool), np.full(minutes, 0.5 * GIB)
        for each in card.stays:
            span = slice(each.first, each.first + len(each.use))
            use[span] = np.maximum(use[span], each.use)
            held[span] = True
            memory[span] += each.memory_bytes
        for each in card.stays:
            pid += 1
            _write_stay(connection, device, each, pid, use)
        _write_device(connection, device, card, use, held, memory, rng)
    for device, minute, kind, text in events:
        row = ("node", device + 2, START_S + 60 * minute, kind, text)
        connection.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?)", row)
    connection.execute("COMMIT")
    connection.close()


def _insert(connection, table: str, columns: dict) -> None:
    """Insert columns of equal length; a plain number is repeated."""
    length = max(len(values) for values in columns.values() if isinstance(values, np.ndarray))
    lists = [values.tolist() if isinstance(values, np.ndarray) else [values] * length for values in columns.values()]
    marks = ", ".join("?" * len(columns))
    connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", zip(*lists, strict=True))


def _write_stay(connection, device: int, each: Stay, pid: int, use: np.ndarray) -> None:
    started_s = START_S + 60.0 * each.first
    values = ("node", each.pid or pid, started_s, each.user, each.name, each.job or str(pid))
    connection.execute("INSERT OR IGNORE INTO process VALUES (NULL, ?, ?, ?, ?, ?, ?)", values)
    query = "SELECT id FROM process WHERE pid = ? AND started_s = ?"
    (process,) = connection.execute(query, (each.pid or pid, started_s)).fetchone()
    total = use[each.first : each.first + len(each.use)]
    columns = {
        "at_s": START_S + 60 * (each.first + np.arange(len(each.use))),
        "device": device,
        "process": process,
        "memory_bytes": each.memory_bytes,
        "sm_frac": each.use,
        "covered_s": 60.0,
        "idle_s": 60.0 * (total < 0.05),
        "device_util_frac": total,
    }
    _insert(connection, MINUTES.process_table, columns)


def _write_device(connection, device, card, use, held, memory, rng) -> None:
    minutes = len(use)
    clock = np.where(use > 0.05, 1900.0, 345.0) if card.clock_mhz is None else card.clock_mhz
    columns = {
        "at_s": START_S + 60 * np.arange(minutes),
        "device": device,
        "covered_s": 60.0,
        "held_s": 60.0 * held,
        "held_idle_s": 60.0 * (held & (use < 0.05)),
        "util_frac": use,
        "util_frac_min": np.maximum(use - 0.1, 0),
        "util_frac_max": np.minimum(use + 0.1, 1),
        "memory_used_bytes": memory,
        "power_w": 90 + 560 * use,
        "sm_clock_mhz": clock * (1 + rng.normal(0, 0.01, minutes)),
        "temperature_c": 45 + 30 * use if card.celsius is None else card.celsius,
        "throttle_bits": 0.0 if card.bits is None else card.bits,
        "energy_j": np.cumsum(60 * (90 + 560 * use)),
    }
    _insert(connection, MINUTES.device_table, columns)
