"""The same rows in many small files, in one memory-mapped file and in a tar; and the number of file opens of each."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tarfile
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpulab.extras import require_extra
from gpulab.wording import duration

if TYPE_CHECKING:
    import pandas as pd

Rows = npt.NDArray[np.float32]
Reader = Callable[[Path, Sequence[int]], float]  # (folder, row indices in reading order) -> sum of all values


@dataclass
class OpenLog:
    """The paths that were opened for reading or writing, in order."""

    paths: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of opens."""
        return len(self.paths)


_active_logs: dict[int, tuple[str, OpenLog]] = {}
_hook_installed: list[bool] = []


@contextlib.contextmanager
def count_opens(folder: str | os.PathLike[str]) -> Iterator[OpenLog]:
    """Count the files under a folder that this process opens, by Python's audit events."""
    if not _hook_installed:
        sys.addaudithook(_on_audit_event)  # cannot be removed; returns at once unless opens are counted
        _hook_installed.append(True)
    opened = OpenLog()
    _active_logs[id(opened)] = (os.fspath(folder), opened)
    try:
        yield opened
    finally:
        del _active_logs[id(opened)]


def write_layouts(folder: Path, rows: Rows) -> None:
    """Write the rows in three layouts: one row-N.f32 per row, all in rows.npy, and the row files in rows.tar."""
    for row_index, row in enumerate(rows):
        row_file(folder, row_index).write_bytes(row.tobytes())
    np.save(folder / "rows.npy", rows)
    with tarfile.open(folder / "rows.tar", "w") as tar:
        for row_index, row in enumerate(rows):
            member = tarfile.TarInfo(row_file(folder, row_index).name)
            member.size = row.nbytes
            tar.addfile(member, io.BytesIO(row.tobytes()))


def row_file(folder: Path, row_index: int) -> Path:
    """Return the path of one row's file."""
    return folder / f"row-{row_index:06d}.f32"


def read_from_files(folder: Path, order: Sequence[int]) -> float:
    """Open, read and close one file for each row."""
    return sum(_sum_values(row_file(folder, row_index).read_bytes()) for row_index in order)


def read_from_memmap(folder: Path, order: Sequence[int]) -> float:
    """Memory-map one file, and read the requested rows."""
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    return sum(float(rows[row_index].sum()) for row_index in order)


def read_from_tar(folder: Path, order: Sequence[int]) -> float:
    """Open one tar, read its index, and then the requested members."""
    with tarfile.open(folder / "rows.tar", "r:") as tar:
        return sum(_sum_values(_member(tar, row_file(folder, row_index).name)) for row_index in order)


def stream_tar(folder: Path, order: Sequence[int]) -> float:
    """Open one tar and read it from start to end, as WebDataset does; the order is that of the archive."""
    with tarfile.open(folder / "rows.tar", "r|") as tar:
        return sum(_sum_values(file.read()) for member in tar if (file := tar.extractfile(member)) is not None)


@dataclass(frozen=True, kw_only=True)
class ReaderTiming:
    """Measurement of one reader."""

    opens: int
    wall_s: float  # the fastest of several repeats
    total: float

    def remote_s(self, per_open_s: float) -> float:
        """Return the time if every open also waits `per_open_s`, as in a remote store."""
        return self.wall_s + self.opens * per_open_s


def time_reader(reader: Reader, folder: Path, order: Sequence[int], repeats: int = 3) -> ReaderTiming:
    """Time a reader `repeats` times; `opens` are those of one repeat."""
    walls_s: list[float] = []
    with count_opens(folder) as opened:
        for _ in range(repeats):
            start = time.perf_counter()
            total = reader(folder, order)
            walls_s.append(time.perf_counter() - start)
    return ReaderTiming(opens=opened.count // repeats, wall_s=min(walls_s), total=total)


def reader_table(readers: Mapping[str, ReaderTiming], per_open_s: float) -> pd.DataFrame:
    """Compare readers: on this disk, and modelled with a wait of `per_open_s` for every open."""
    require_extra("lab", "pandas", problem="This experiment needs pandas for its table.")
    import pandas as pd

    remote_column = f"ms if each open waits {duration(1e9 * per_open_s)} (modelled)"
    rows = {
        name: {
            "opens": each.opens,
            "ms on this disk": round(1000 * each.wall_s),
            remote_column: round(1000 * each.remote_s(per_open_s)),
        }
        for name, each in readers.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


@dataclass(frozen=True, kw_only=True)
class EpochReadCost:
    """File opens and peak memory of reading several epochs."""

    opens: int
    peak_mb: int  # peak memory in MB, rounded up
    correct: bool  # every epoch gave the same sum as the single files


def check_reader(
    epochs: Callable[[Path, Sequence[Sequence[int]]], Sequence[float]], folder: Path, orders: Sequence[Sequence[int]]
) -> EpochReadCost:
    """Let `epochs(folder, orders)` read the rows, one order per epoch; count its opens and check its sums."""
    expected = [read_from_files(folder, order) for order in orders]
    tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    bytes_before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    try:
        with count_opens(folder) as opened:
            result: object = epochs(folder, orders)
            sums = list(result) if isinstance(result, Iterable) else []
        peak_bytes = tracemalloc.get_traced_memory()[1] - bytes_before
    finally:
        if not tracing:
            tracemalloc.stop()
    correct = len(sums) == len(expected) and bool(np.allclose(sums, expected, rtol=1e-5, atol=1e-3))
    return EpochReadCost(opens=opened.count, peak_mb=-(-peak_bytes // 1_000_000), correct=correct)


def _on_audit_event(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _active_logs:
        return
    path = arguments[0]
    if not isinstance(path, str | bytes | os.PathLike):
        return  # a file descriptor: its file was counted when it was opened
    for folder, opened in tuple(_active_logs.values()):
        if os.fsdecode(path).startswith(folder):
            opened.paths.append(os.fsdecode(path))


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    return file.read() if file is not None else b""  # None only for members that are not files


def _sum_values(data: bytes) -> float:
    return float(np.frombuffer(data, np.float32).sum())
