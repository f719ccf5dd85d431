"""Content of the records of a spool: header, state and rows. Times are UNIX ns; a reader shifts them to the run's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
import numpy as np

from gpulab.capture.spool.framing import MAX_RECORD_BYTES
from gpulab.rows import Array, Rows, Table, TextColumn, absent_value
from gpulab.run import (
    DiscardedGradients,
    EvaluatedModule,
    FrozenModel,
    Gap,
    GrowingInput,
    Loader,
    Machine,
    Model,
    Optimizer,
    RepeatedInputs,
)
from gpulab.store.document import encode_json
from gpulab.tables import ALLOCATOR, GPU_SAMPLES, HOST_SAMPLES, MARKS, PHASES, STALLS, WORKER_SAMPLES

STILL_OPEN = 2**62  # end of a window in which the profiler is recording
TIME_COLUMNS = ("start_ns", "end_ns", "at_ns")
TABLES = {table.name: table for table in (MARKS, GPU_SAMPLES, HOST_SAMPLES, WORKER_SAMPLES, STALLS, ALLOCATOR, PHASES)}


@dataclass(frozen=True, kw_only=True)
class SpoolHeader:
    """The recording, as known when the file was created."""

    name: str
    level: str
    process: str  # a ProcessIdentity
    began_ns: int
    date: str  # ISO
    machine: Machine
    gpulab: str  # version
    segment: int = 0  # number of the file: a long recording keeps its latest ones


@dataclass(frozen=True, kw_only=True)
class RecordingState:
    """What changes during a recording and is not a table."""

    phase: str = ""  # of the profiler
    windows_ns: tuple[tuple[int, int], ...] = ()  # when the profiler recorded events; an open one ends at STILL_OPEN
    pauses_ns: tuple[tuple[int, int], ...] = ()
    gaps: tuple[Gap, ...] = ()
    loaders: tuple[Loader, ...] = ()
    models: tuple[Model, ...] = ()
    optimizers: tuple[Optimizer, ...] = ()
    frozen_models: tuple[FrozenModel, ...] = ()
    repeated_inputs: tuple[RepeatedInputs, ...] = ()
    repeated_in_evaluations: tuple[RepeatedInputs, ...] = ()
    evaluated_modules: tuple[EvaluatedModule, ...] = ()
    growing_inputs: tuple[GrowingInput, ...] = ()
    discarded_gradients: tuple[DiscardedGradients, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    open_phases: tuple[tuple[str, int], ...] = ()  # name and start of those that had not ended


class _Rows(msgspec.Struct):
    table: str
    count: int
    columns: dict[str, bytes]  # little-endian values; codes of text columns
    vocabularies: dict[str, list[str]]


def encode_value(value: SpoolHeader | RecordingState) -> bytes:
    """The content of a header or state record."""
    return encode_json(value)


def decode_header(content: bytes) -> SpoolHeader:
    """The header. Raises ValueError if it is damaged."""
    with _damage():
        return msgspec.json.decode(content, type=SpoolHeader)


def decode_state(content: bytes) -> RecordingState:
    """The state. Raises ValueError if it is damaged."""
    with _damage():
        return msgspec.json.decode(content, type=RecordingState)


def encode_rows(rows: Rows) -> bytes:
    """The content of a rows record: the memory of each column. Parquet would import pyarrow into the user's program."""
    texts = {name: values for name, values in rows.columns.items() if isinstance(values, TextColumn)}
    columns = {name: _little_endian(rows[name]) for name in rows.columns}
    vocabularies = {
        name: [text.encode("utf-8", "replace").decode() for text in column.vocabulary] for name, column in texts.items()
    }
    return msgspec.msgpack.encode(_Rows(rows.table.name, len(rows), columns, vocabularies))


def decode_rows(content: bytes) -> Rows | None:
    """The rows; None if their table is unknown. Raises ValueError if they are damaged; a missing column is absent."""
    with _damage():
        record = msgspec.msgpack.decode(content, type=_Rows)
    table = TABLES.get(record.table)
    if table is None:
        return None
    if not 0 <= record.count <= MAX_RECORD_BYTES // 8:  # every table has a column of 8 bytes
        raise ValueError(f"it claims to have {record.count} rows")
    return table.rows({column.name: _column(table, column.name, record) for column in table.columns})


def _little_endian(values: Array) -> bytes:
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def _column(table: Table, name: str, record: _Rows) -> Array | TextColumn:
    is_text = table.column(name).dtype == "words"
    dtype = np.dtype(np.int32) if is_text else np.dtype(table.column(name).dtype)
    stored = record.columns.get(name)
    if stored is None:
        absent = np.full(record.count, -1 if is_text else absent_value(dtype), dtype)
        return TextColumn(absent, ()) if is_text else absent
    if len(stored) != record.count * dtype.itemsize:
        raise ValueError(f"the column {name} does not have {record.count} values")
    values = np.frombuffer(stored, dtype.newbyteorder("<")).astype(dtype)
    if not is_text:
        return values
    vocabulary = tuple(record.vocabularies.get(name, ()))
    if len(values) and not -1 <= values.min() <= values.max() < len(vocabulary):
        raise ValueError(f"the column {name} refers to a text that it does not have")
    return TextColumn(values, vocabulary)


@contextmanager
def _damage() -> Iterator[None]:
    """Convert the errors of msgspec to ValueError."""
    try:
        yield
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
