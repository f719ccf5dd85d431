"""A run on disk, out and in: one `.gpulab` file, a zip of `run.json` and one Parquet file per table.

Any tool that reads Parquet can read the tables. Nothing in the file is code, and nothing is trusted: sizes are checked
before they are believed. A file of a newer minor schema opens, with a note of what was passed over; a newer major one
is refused with the advice to upgrade; what an older one lacks is filled in as absent.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import zipfile
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec
import numpy as np

from gpulab.errors import GpulabError, StoreError
from gpulab.run import Gap, Run
from gpulab.tables import EVENTS, MARKS, TABLES, Column, Kind, MarkKind, Rows, Table, Words

if TYPE_CHECKING:
    import pyarrow as pa

MAJOR, MINOR = 1, 0
SUFFIX = ".gpulab"
_META = "run.json"
_MOST_BYTES = 8 * 2**30
_MOST_ROWS = 100_000_000
_KINDS = {EVENTS.name: Kind, MARKS.name: MarkKind}
_HINTS = "is it whole? copy it again, or record the run anew"
_ROWS = {"event_rows": "events", "mark_rows": "marks", "gpu_rows": "gpu_samples", "host_rows": "host_samples"}


def save(run: Run, path: str | os.PathLike[str]) -> Path:
    """Write a run, whole or not at all, and give the path; `.gpulab` is added where there is no suffix.

    Raises StoreError where it cannot be written.
    """
    target = Path(path)
    target = target if target.suffix else target.with_suffix(SUFFIX)
    # In the same folder, so that the last step is a rename, which either happens or does not.
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            _write(run, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(
            f"The run {run.name!r} could not be saved to {target}.",
            why=getattr(error, "strerror", None) or str(error),
            fix="check that the folder exists, may be written to and has room",
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return target


def is_run(path: str | os.PathLike[str]) -> bool:
    """Whether the file begins as a `.gpulab` file does, whatever it is called and whether or not it is whole."""
    try:
        if not Path(path).is_file():
            return False
        with Path(path).open("rb") as file:
            head = file.read(30 + len(_META))
    except (OSError, ValueError):
        return False
    return head.startswith(b"PK\x03\x04") and head[30:] == _META.encode()


def open(path: str | os.PathLike[str]) -> Run:
    """Read a run back, equal in every field. Raises StoreError where the file is no run, damaged, or too new."""
    source = Path(path)
    try:
        with zipfile.ZipFile(source) as archive:
            if sum(member.file_size for member in archive.infolist()) > _MOST_BYTES:
                raise _refused(source, "it claims to hold more than 8 GiB", "open only files that you trust")
            meta = _meta(archive.read(_META), source)
            texts = {name: archive.read(f"{name}.parquet") for name in _present(archive)}
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, NotImplementedError) as error:
        raise _refused(source, f"it is damaged or of another kind ({error})", _HINTS) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise StoreError(f"{source} cannot be opened.", why=why, fix="check the path and its permissions") from error
    try:
        return _run(meta, texts)
    except GpulabError as error:
        raise _refused(source, f"it is damaged: {error.why}", _HINTS) from error
    except _arrow_errors() as error:
        raise _refused(source, f"it is damaged: {str(error).splitlines()[0]}", _HINTS) from error


# Out.


def _write(run: Run, file: Any) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(_META), _encoded(run), zipfile.ZIP_DEFLATED)
        for field, name in _ROWS.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.parquet"), _parquet(getattr(run, field)), zipfile.ZIP_STORED)


def _encoded(run: Run) -> bytes:
    plain = {field.name: getattr(run, field.name) for field in dataclasses.fields(run) if field.name not in _ROWS}
    document = {"format": "gpulab run", "schema": [MAJOR, MINOR], "run": plain}
    return msgspec.json.format(msgspec.json.encode(document, enc_hook=_encodable), indent=1)


def _encodable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a run holds a {type(value).__name__}, which has no place in a file")


def _parquet(rows: Rows) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    columns = {column.name: _arrow(rows.columns[column.name]) for column in rows.table.columns}
    # Times and identifiers grow; everything else repeats.
    growing = [name for name in columns if name.endswith("_ns") or name == "correlation"]
    buffer = BytesIO()
    parquet.write_table(
        pa.table(columns),
        buffer,
        compression="zstd",
        compression_level=9,
        use_dictionary=[name for name in columns if name not in growing],
        column_encoding=dict.fromkeys(growing, "DELTA_BINARY_PACKED"),
        row_group_size=max(1, len(rows)),  # one dictionary per column, kept as it is
        dictionary_pagesize_limit=2**30,
    )
    return buffer.getvalue()


def _arrow(values: Any) -> pa.Array:
    import pyarrow as pa

    if not isinstance(values, Words):
        return pa.array(values)
    # A file name may hold bytes that are no text; Parquet takes UTF-8 only.
    words = [word.encode("utf-8", "replace").decode() for word in values.vocabulary]
    codes = pa.array(values.codes, mask=values.codes < 0)
    return pa.DictionaryArray.from_arrays(codes, pa.array(words, pa.string()))


# In.


def _refused(source: Path, why: str, fix: str) -> StoreError:
    return StoreError(f"{source} cannot be read as a run.", why=why, fix=fix)


def _present(archive: zipfile.ZipFile) -> list[str]:
    names = set(archive.namelist())
    return [table.name for table in TABLES if f"{table.name}.parquet" in names]


class _Document(msgspec.Struct):
    """What run.json holds."""

    format: str
    schema: tuple[int, int]
    run: dict[str, Any]


def _meta(text: bytes, source: Path) -> _Document:
    try:
        document = msgspec.json.decode(text, type=_Document)
    except (ValueError, RecursionError) as error:
        raise _refused(source, f"its {_META} is damaged ({error})", _HINTS) from error
    if document.format != "gpulab run":
        raise _refused(source, f"it holds a {document.format!r}", "give a file that gpulab.save(...) wrote")
    if document.schema[0] > MAJOR:
        raise _refused(
            source,
            f"it was written by a newer gpulab (file schema {document.schema[0]}, this one reads {MAJOR})",
            "pip install --upgrade gpulab",
        )
    return document


def _run(document: _Document, texts: Mapping[str, bytes]) -> Run:
    """The run, with a note in `recording.left_out` where the file held more than this version knows."""
    hints = get_type_hints(Run)
    known = {field.name for field in dataclasses.fields(Run)} - set(_ROWS)
    passed_over = sorted(set(document.run) - known)
    values: dict[str, Any] = {
        name: msgspec.convert(document.run[name], hints[name]) for name in sorted(known & set(document.run))
    }
    for field, name in _ROWS.items():
        if name in texts:
            table = next(table for table in TABLES if table.name == name)
            values[field], unknown = _rows(table, texts[name])
            passed_over += [f"{name}: {what}" for what in unknown]
    try:
        run = Run(**values)
    except TypeError as error:  # a field without a default is missing
        raise ValueError(str(error)) from error
    _check_codes(run)
    if not passed_over:
        return run
    note = Gap(
        what="parts of the file: " + ", ".join(passed_over),
        why=f"this gpulab does not know them (the file is of schema {document.schema[0]}.{document.schema[1]})",
        fix="pip install --upgrade gpulab",
    )
    recording = dataclasses.replace(run.recording, left_out=(*run.recording.left_out, note))
    return dataclasses.replace(run, recording=recording)


def _rows(table: Table, text: bytes) -> tuple[Rows, list[str]]:
    """The rows of a table, and what of the file was passed over. Raises ValueError or Arrow's errors for damage."""
    from pyarrow import parquet

    file = parquet.ParquetFile(BytesIO(text))
    if file.metadata.num_rows > _MOST_ROWS:
        raise ValueError(f"the table {table.name} claims {file.metadata.num_rows:,} rows")
    present = set(file.schema_arrow.names)
    wanted = [column for column in table.columns if column.name in present]
    unknown = sorted(present - {column.name for column in wanted})
    read = file.read(columns=[column.name for column in wanted], use_threads=False)
    columns = {column.name: _column(column, read[column.name]) for column in wanted}
    for column in table.columns:
        if column.name not in columns:
            columns[column.name] = _absent(column, file.metadata.num_rows, table)
    rows = table.rows(columns)
    if table.name in _KINDS and len(rows):
        strange = ~np.isin(rows["kind"], [int(kind) for kind in _KINDS[table.name]])
        if strange.any():
            unknown.append(f"{int(strange.sum())} rows of a kind that is not known")
            rows = rows.where(~strange)
    return rows, unknown


def _column(column: Column, values: pa.ChunkedArray) -> Any:
    import pyarrow as pa

    if column.dtype == "words":
        if not pa.types.is_dictionary(values.type):
            values = values.cast(pa.string()).dictionary_encode()
        array = values.unify_dictionaries().combine_chunks()
        array = array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks or [pa.array([], array.type)])
        array.validate(full=True)
        codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
        return Words(codes, tuple(array.dictionary.cast(pa.string()).to_pylist()))
    if values.null_count:
        values = values.fill_null(float("nan") if column.dtype.startswith("float") else -1)
    array = values.to_numpy()
    if array.dtype.kind not in "iufb":
        raise ValueError(f"the column {column.name} holds {values.type}, not {column.dtype}")
    return array


def _absent(column: Column, count: int, table: Table) -> Any:
    """A column an older file lacks. Times and kinds have no value that means absent."""
    if column.name in ("kind", "start_ns", "end_ns", "dur_ns", "at_ns"):
        raise ValueError(f"the table {table.name} lacks its column {column.name}")
    if column.dtype == "words":
        return Words(np.full(count, -1, np.int32), ())
    dtype = np.dtype(column.dtype)
    return np.full(count, np.nan if dtype.kind == "f" else dtype.type(0) if dtype.kind == "b" else -1, dtype)


def _check_codes(run: Run) -> None:
    """An index that points nowhere would fail far from here. Raises ValueError."""
    highest = int(run.event_rows["thread"].max(initial=-1))
    if highest >= len(run.threads) or not 0 <= run.main_thread < max(1, len(run.threads)):
        raise ValueError("a thread is referred to that is not listed")


def _arrow_errors() -> tuple[type[Exception], ...]:
    import pyarrow as pa

    return (pa.ArrowException, OSError, ValueError, KeyError, OverflowError)
