"""Open an SQLite export of Nsight Systems, and read columns of its tables as arrays.

The tables and their columns differ between versions of nsys, and a table exists only if it has rows. So every query
asks which of the columns exist.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from gpulab.errors import TraceError
from gpulab.intervals import Ints
from gpulab.trace.columns.vocabulary import MAX_TEXT_LENGTH
from gpulab.trace.reading.text_blocks import open_source
from gpulab.wording import clean_code

KERNELS, COPIES, MEMSETS = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET"))
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
NVTX = "NVTX_EVENTS"
STRINGS = "StringIds"
EVENT_TABLES = (KERNELS, COPIES, MEMSETS, GRAPHS, CALLS, NVTX)

_DATABASE = b"SQLite format 3\0"
_REPORT = b"NVIDIA Tegra Profiler Report"  # the first bytes of a .nsys-rep
REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
_EXPORT = "nsys export --type sqlite {file}"
_RECORD = "record with: nsys profile --trace=cuda,nvtx --export=sqlite python train.py"


def is_database(path: Path) -> bool:
    """Whether the file is an SQLite database."""
    return _head(path).startswith(_DATABASE)


def is_report(path: Path) -> bool:
    """Whether the file is a report of Nsight Systems in its own format, which only nsys can read."""
    head = _head(path)
    return head.startswith(_REPORT) or (path.name.lower().endswith(REPORT_SUFFIXES) and not head.startswith(_DATABASE))


def is_nsys_export(path: Path) -> bool:
    """Whether the file is a readable SQLite database with tables of Nsight Systems."""
    try:
        with opened(path):
            return True
    except TraceError:
        return False


def report_error(path: Path) -> TraceError:
    """The error for a report in nsys's own format, with the command that exports it."""
    return TraceError(
        f"{path} is a report of Nsight Systems, which only nsys itself can read.",
        why="gpulab reads its SQLite export",
        fix=f"{_EXPORT.format(file=clean_code(str(path), 300))}; then load the .sqlite file",
    )


def _head(path: Path) -> bytes:
    try:
        with open_source(path) as file:
            return file.read(len(_REPORT))
    except (TraceError, OSError):
        return b""


class Database:
    """An open export: its tables, their columns, and its strings."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        names = [str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {name: self._columns_of(name) for name in names}
        # Events without a time are none: a table of that name by another tool.
        self.tables: Mapping[str, frozenset[str]] = {
            name: columns[name] for name in names if name not in EVENT_TABLES or columns[name] >= {"start", "end"}
        }

    def _columns_of(self, table: str) -> frozenset[str]:
        return frozenset(str(row[1]) for row in self._connection.execute(f"PRAGMA table_info({_quoted(table)})"))

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table exists and has these columns."""
        return table in self.tables and self.tables[table].issuperset(columns)

    def first_column(self, table: str, *names: str) -> str | None:
        """The first of these columns that the table has; None if it has none."""
        return next((name for name in names if name in self.tables.get(table, ())), None)

    def sum_of(self, table: str, *columns: str) -> str:
        """An expression for the sum of these columns; -1 if the table lacks one."""
        return " + ".join(map(_quoted, columns)) if self.has(table, *columns) else "-1"

    def product_of(self, table: str, *columns: str) -> str:
        """An expression for the product of these columns; -1 if the table lacks one."""
        return " * ".join(map(_quoted, columns)) if self.has(table, *columns) else "-1"

    def column(self, table: str, name: str, absent: str = "-1") -> str:
        """An expression for the column; `absent` if the table lacks it."""
        return _quoted(name) if self.has(table, name) else absent

    def integers(self, table: str, expressions: Mapping[str, str], condition: str = "1") -> dict[str, Ints]:
        """One int64 array for each expression, over the rows of the table; NULL is -1."""
        empty = {name: np.empty(0, np.int64) for name in expressions}
        if table not in self.tables:
            return empty
        selected = ", ".join(f"CAST(IFNULL({each}, -1) AS INTEGER)" for each in expressions.values())
        rows = self._connection.execute(f"SELECT {selected} FROM {_quoted(table)} WHERE {condition}")
        values = np.fromiter(chain.from_iterable(rows), np.int64).reshape(-1, len(expressions))
        return {name: np.ascontiguousarray(values[:, index]) for index, name in enumerate(expressions)}

    def row_counts(self, table: str, expression: str, condition: str) -> dict[int, int]:
        """The number of rows for each value of the expression."""
        query = f"SELECT CAST({expression} AS INTEGER), COUNT(*) FROM {_quoted(table)} WHERE {condition} GROUP BY 1"
        return dict(self._connection.execute(query))

    def distinct_pairs(self, table: str, key: str, text: str, condition: str = "1") -> dict[Any, str]:
        """The distinct values of a column, each with the text beside it; {} without this table or these columns."""
        if not self.has(table, key, text):
            return {}
        query = f"SELECT {_quoted(key)}, {_limited(text)} FROM {_quoted(table)} WHERE {condition}"
        return {identity: str(value) for identity, value in self._connection.execute(query) if value is not None}

    def distinct_texts(self, table: str, column: str, condition: str) -> tuple[list[str], Ints]:
        """The distinct texts of a column, and the index of each row's text; -1 for NULL."""
        if not self.has(table, column):
            return [], np.empty(0, np.int64)
        rows = self._connection.execute(f"SELECT {_limited(column)} FROM {_quoted(table)} WHERE {condition}")
        index: dict[str, int] = {}
        codes = np.fromiter(
            (-1 if text is None else index.setdefault(str(text), len(index)) for (text,) in rows), np.int64
        )
        return list(index), codes

    def strings(self, ids: Ints) -> dict[int, str]:
        """The texts of these string ids; ids without a text are left out."""
        if not self.has(STRINGS, "id", "value"):
            return {}
        distinct = set(np.unique(ids).tolist())
        query = f"SELECT id, {_limited('value')} FROM {STRINGS}"
        return {identity: str(value) for identity, value in self._connection.execute(query) if identity in distinct}

    def rows(self, table: str, *columns: str) -> list[dict[str, Any]]:
        """All rows of a small table, with those of these columns that exist."""
        existing = [name for name in columns if self.has(table, name)]
        if not existing:
            return []
        query = f"SELECT {', '.join(map(_quoted, existing))} FROM {_quoted(table)} LIMIT 10000"
        return [dict(zip(existing, row, strict=True)) for row in self._connection.execute(query)]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Database]:
    """An export, opened for reading only. Raises TraceError if it is none, or if it is damaged."""
    try:
        with contextlib.closing(_connect(path)) as connection:
            database = Database(connection)
            _check(path, database)
            yield database
    except (sqlite3.Error, OverflowError) as error:
        raise TraceError(
            f"The SQLite database {path} cannot be read.",
            why=str(error) or type(error).__name__,
            fix="export it again: " + _EXPORT.format(file="REPORT.nsys-rep"),
        ) from None


def _connect(path: Path) -> sqlite3.Connection:
    # Immutable: nothing is written next to the file, not even a lock, and a read-only disk works.
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    return connection


def _check(path: Path, database: Database) -> None:
    """Raise TraceError unless these are tables of Nsight Systems with events."""
    tables = database.tables
    if any(database.has(table) for table in EVENT_TABLES) and "StringTable" not in tables:
        return
    if STRINGS in tables and any(name.startswith(("META_DATA_", "TARGET_INFO_")) for name in tables):
        raise TraceError(
            f"{path} contains no CUDA or NVTX events.",
            why="this report of Nsight Systems recorded neither",
            fix=_RECORD,
        )
    origin = "it was written by nvprof" if "StringTable" in tables else "it has none of the tables that nsys writes"
    raise TraceError(
        f"{path} is not an export of Nsight Systems.",
        why=f"it is an SQLite database, but {origin}",
        fix=f"export a report with: {_EXPORT.format(file='REPORT.nsys-rep')}; or {_RECORD}",
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _limited(column: str) -> str:
    return f"substr(CAST({_quoted(column)} AS TEXT), 1, {MAX_TEXT_LENGTH})"


def texts_of(texts: Mapping[int, str], ids: Sequence[int]) -> list[str]:
    """The text of each id; the id itself where it has none."""
    return [texts.get(identity) or f"string {identity}" for identity in ids]
