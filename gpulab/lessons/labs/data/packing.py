"""The same rows in many small files, in one that is mapped into memory, and in a tar; and how many opens each takes."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tarfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpulab.wording import duration

if TYPE_CHECKING:
    import pandas as pd

Rows = npt.NDArray[np.float32]
Reader = Callable[[Path, Sequence[int]], float]  # a folder, and rows in the order to read them -> the sum of all


@dataclass
class Opened:
    """The paths that were opened for reading or writing, in order."""

    paths: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many opens."""
        return len(self.paths)


_watching: dict[int, tuple[str, Opened]] = {}
_hooked: list[bool] = []


@contextlib.contextmanager
def opens(folder: str | os.PathLike[str]) -> Iterator[Opened]:
    """Count the files under a folder that this process opens, by Python's own audit events."""
    if not _hooked:
        sys.addaudithook(_noticed)  # Python knows no way to take one out again: this one stays, and mostly does nothing
        _hooked.append(True)
    opened = Opened()
    _watching[id(opened)] = (os.fspath(folder), opened)
    try:
        yield opened
    finally:
        del _watching[id(opened)]


def write(folder: Path, rows: Rows) -> None:
    """The rows in three ways: row-N.f32 each by itself, all in rows.npy, and rows.tar of the single files."""
    for place, row in enumerate(rows):
        single(folder, place).write_bytes(row.tobytes())
    np.save(folder / "rows.npy", rows)
    with tarfile.open(folder / "rows.tar", "w") as tar:
        for place, row in enumerate(rows):
            member = tarfile.TarInfo(single(folder, place).name)
            member.size = row.nbytes
            tar.addfile(member, io.BytesIO(row.tobytes()))


def single(folder: Path, place: int) -> Path:
    """The file of one row."""
    return folder / f"row-{place:06d}.f32"


def from_files(folder: Path, order: Sequence[int]) -> float:
    """Open, read and close one file for each row."""
    return sum(_summed(single(folder, place).read_bytes()) for place in order)


def from_map(folder: Path, order: Sequence[int]) -> float:
    """Map one file into memory, and touch the rows that are wanted."""
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    return sum(float(rows[place].sum()) for place in order)


def from_tar(folder: Path, order: Sequence[int]) -> float:
    """Open one tar, read where its members lie, and then each that is wanted."""
    with tarfile.open(folder / "rows.tar", "r:") as tar:
        return sum(_summed(_member(tar, single(folder, place).name)) for place in order)


@dataclass(frozen=True, kw_only=True)
class Read:
    """One way of reading, as measured."""

    opens: int
    wall_s: float  # the fastest of several
    total: float

    def elsewhere_s(self, per_open_s: float) -> float:
        """The same where every open first waits as long as this, as in a store across a network."""
        return self.wall_s + self.opens * per_open_s


def measured(reader: Reader, folder: Path, order: Sequence[int], repeats: int = 3) -> Read:
    """Read every row so many times; opens are those of one time."""
    walls_s: list[float] = []
    with opens(folder) as opened:
        for _ in range(repeats):
            began = time.perf_counter()
            total = reader(folder, order)
            walls_s.append(time.perf_counter() - began)
    return Read(opens=opened.count // repeats, wall_s=min(walls_s), total=total)


def table(ways: Mapping[str, Read], per_open_s: float) -> pd.DataFrame:
    """These ways of reading side by side, here and where every open first waits so long."""
    import pandas as pd

    elsewhere = f"ms where an open waits {duration(1e9 * per_open_s)} (modelled)"
    rows = {
        name: {
            "opens": each.opens,
            "ms on this disk": round(1000 * each.wall_s),
            elsewhere: round(1000 * each.elsewhere_s(per_open_s)),
        }
        for name, each in ways.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


@dataclass(frozen=True, kw_only=True)
class Feeding:
    """What a way of reading cost over several epochs, in counts."""

    opens: int
    held_mb: int  # most memory held at any moment, in whole MB, rounded up
    right: bool  # every epoch gave what reading the single files gives


def tried(
    epochs: Callable[[Path, Sequence[Sequence[int]]], Sequence[float]], folder: Path, orders: Sequence[Sequence[int]]
) -> Feeding:
    """Have `epochs(folder, orders)` read rows in these orders, one for each epoch, and count what that takes."""
    wanted = [from_files(folder, order) for order in orders]
    tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    held_before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    try:
        with opens(folder) as opened:
            sums = list(epochs(folder, orders))
        held = tracemalloc.get_traced_memory()[1] - held_before
    finally:
        if not tracing:
            tracemalloc.stop()
    right = len(sums) == len(wanted) and bool(np.allclose(sums, wanted, rtol=1e-5, atol=1e-3))
    return Feeding(opens=opened.count, held_mb=-(-held // 1_000_000), right=right)


def _noticed(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _watching:
        return
    path = arguments[0]
    if not isinstance(path, str | bytes | os.PathLike):
        return  # a descriptor, whose file was counted when it was opened
    for folder, opened in tuple(_watching.values()):
        if os.fsdecode(path).startswith(folder):
            opened.paths.append(os.fsdecode(path))


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    found = tar.extractfile(name)
    return found.read() if found is not None else b""  # None: no file, and all of them are


def _summed(data: bytes) -> float:
    return float(np.frombuffer(data, np.float32).sum())
