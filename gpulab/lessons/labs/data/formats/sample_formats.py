"""Rows of numbers in five formats: one file per row, a memory map, tar shards, TFRecord shards and Parquet.

Every format is read from start to end, a row at a time. `open_file` is a store that counts requests, or the folder.
"""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpulab.errors import GpulabError
from gpulab.lessons.labs import tables
from gpulab.lessons.labs.data.formats.counted_store import CountedStore, Opener, folder_opener
from gpulab.lessons.labs.data.formats.record_files import read_frames
from gpulab.lessons.labs.data.storage_formats import count_opens
from gpulab.views.sheet.view import View
from gpulab.wording import duration, metric

Row = npt.NDArray[np.float32]
Rows = npt.NDArray[np.float32]
RowReader = Callable[[Opener, Path], Iterator[Row]]  # (how to open a file, the folder) -> rows in stored order

READ_BYTES = 1 << 20  # requested at once from shards


def write_row_files(folder: Path, rows: Rows) -> None:
    """Write each row to a file of its own."""
    folder.mkdir(exist_ok=True)
    for index, row in enumerate(rows):
        (folder / f"{index:06d}.f32").write_bytes(row.tobytes())


def write_memory_map(folder: Path, rows: Rows) -> None:
    """Write all rows to one file without a header, to be memory-mapped."""
    folder.mkdir(exist_ok=True)
    rows.tofile(folder / f"rows-{rows.shape[1]}.f32")


def write_tar_shards(folder: Path, rows: Rows, shards: int) -> None:
    """Write the rows to tar archives, in order, a member per row."""
    folder.mkdir(exist_ok=True)
    first = 0
    for shard, part in enumerate(np.array_split(rows, shards)):
        names = [f"{first + index:06d}.f32" for index in range(len(part))]
        write_tar(folder / f"shard-{shard:04d}.tar", names, [row.tobytes() for row in part])
        first += len(part)


def write_tar(path: Path, names: Sequence[str], contents: Sequence[bytes]) -> None:
    """Write an archive with these members."""
    with tarfile.open(path, "w") as tar:
        for name, content in zip(names, contents, strict=True):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def write_record_shards(folder: Path, rows: Rows, shards: int, frame: Callable[[bytes], bytes]) -> None:
    """Write the rows to TFRecord files, in order; `frame` returns a payload in its frame."""
    folder.mkdir(exist_ok=True)
    for shard, part in enumerate(np.array_split(rows, shards)):
        frames = b"".join(frame(row.tobytes()) for row in part)
        (folder / f"shard-{shard:04d}.tfrecord").write_bytes(frames)


def write_parquet(folder: Path, rows: Rows, groups: int) -> None:
    """Write the rows to one Parquet file, uncompressed, as a column of lists in this number of row groups.

    Raises GpulabError if pyarrow is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as missing:
        raise GpulabError(
            "This experiment needs pyarrow, which writes and reads Parquet.",
            why="it is not installed here",
            fix='pip install pyarrow (pip install "gpulab[lab]" installs it with all that the notebooks need)',
        ) from missing
    folder.mkdir(exist_ok=True)
    column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.ravel()), rows.shape[1])
    table = pyarrow.table({"row": column})
    options = {"compression": "none", "use_dictionary": False}
    parquet.write_table(table, folder / "rows.parquet", row_group_size=-(-len(rows) // groups), **options)


def read_row_files(open_file: Opener, folder: Path) -> Iterator[Row]:
    """Open, read and close one file after the other."""
    for name in _names(folder):
        with open_file(name, READ_BYTES) as file:
            yield np.frombuffer(file.read(), np.float32)


def read_memory_map(open_file: Opener, folder: Path) -> Iterator[Row]:
    """Map the file; a row is read when it is used, by page faults instead of read calls."""
    (name,) = _names(folder)
    columns = int(name.removeprefix("rows-").removesuffix(".f32"))
    yield from np.memmap(folder / name, np.float32, "r").reshape(-1, columns)


def read_tar_shards(open_file: Opener, folder: Path) -> Iterator[Row]:
    """Read archive after archive from start to end (mode "r|"), as WebDataset does."""
    for name in _names(folder):
        with open_file(name, READ_BYTES) as file:
            yield from (np.frombuffer(content, np.float32) for content in read_tar_members(file))


def read_tar_members(file: io.BufferedIOBase | object) -> Iterator[bytes]:
    """Yield the contents of the members of an open archive, from start to end, without seeking."""
    with tarfile.open(fileobj=file, mode="r|") as tar:  # type: ignore[call-overload]
        for member in tar:
            content = tar.extractfile(member)
            if content is not None:
                yield content.read()


def read_record_shards(open_file: Opener, folder: Path) -> Iterator[Row]:
    """Read TFRecord file after TFRecord file; checksums of payloads are not compared."""
    for name in _names(folder):
        with open_file(name, READ_BYTES) as file:
            yield from (np.frombuffer(payload, np.float32) for payload in read_frames(file))


def read_parquet(open_file: Opener, folder: Path) -> Iterator[Row]:
    """Read a Parquet file, row group after row group."""
    from pyarrow import parquet

    with open_file("rows.parquet", READ_BYTES) as file:
        for batch in parquet.ParquetFile(file).iter_batches(use_threads=False):
            column = batch.column(0)
            yield from column.flatten().to_numpy().reshape(len(column), -1)


READERS: dict[str, RowReader] = {
    "files": read_row_files,
    "memory map": read_memory_map,
    "tar shards": read_tar_shards,
    "TFRecord shards": read_record_shards,
    "Parquet": read_parquet,
}


@dataclass(frozen=True, kw_only=True)
class FormatCost:
    """What it takes to read all rows of a format once."""

    rows: Rows
    opens: int
    reads: int  # read calls that returned data; a memory map has none
    stored_bytes: int
    wall_s: float  # the fastest of several repeats, from a warm page cache


def read_cost(name: str, folder: Path, repeats: int = 5) -> FormatCost:
    """Count the opens and reads of a format, and time it."""
    reader, store = READERS[name], CountedStore(folder)
    rows = list(reader(store.open, folder))
    walls_s = []
    with count_opens(folder) as opened:
        for _ in range(repeats):
            start = time.perf_counter()
            for row in reader(folder_opener(folder), folder):
                row.sum()
            walls_s.append(time.perf_counter() - start)
    return FormatCost(
        rows=np.stack(rows) if rows else np.zeros((0, 0), np.float32),
        opens=opened.count // repeats,
        reads=store.reads,
        stored_bytes=sum(path.stat().st_size for path in folder.iterdir()),
        wall_s=min(walls_s),
    )


def format_table(costs: dict[str, FormatCost]) -> View:
    """Compare formats: opens and reads of an epoch, stored bytes, and measured bandwidth."""
    lines = [
        (
            name,
            f"{cost.opens:,}",
            f"{cost.reads:,}" if cost.reads else "page faults",
            metric(cost.stored_bytes, "B"),
            duration(1e9 * cost.wall_s),
            metric(cost.rows.nbytes / cost.wall_s, "B/s"),
        )
        for name, cost in costs.items()
    ]
    header = ("format", "opens", "reads", "stored", "time per epoch", "bandwidth")
    return tables.table_view(header, lines, below="Opens and reads are counted, times measured from a warm page cache.")


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
