"""Read a `.gpulab` file as a run that equals the saved one in every field."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from gpulab.errors import StoreError
from gpulab.extras import install_command, is_installed
from gpulab.rows import Rows, Table
from gpulab.run import TABLE_FIELDS, Run
from gpulab.store import newer_schema
from gpulab.store.archive import Archive
from gpulab.store.consistency import find_inconsistency
from gpulab.store.document import Document, decode_document
from gpulab.store.format import METADATA_PART, Schema, invalid_run_error, is_parquet, part_name, table_suffix
from gpulab.store.memory_allowance import MemoryAllowance
from gpulab.store.parquet.decoding import decode_parquet
from gpulab.store.table_decoding import decode_table

_MAX_BYTES = 8 * 2**30
# A run takes 10 to 25 times the memory of its file; a malicious file could take any multiple.
_RATIO, _RATIO_FROM_BYTES = 1000, 256 * 2**20


def is_run(path: str | os.PathLike[str]) -> bool:
    """Whether the file begins like a `.gpulab` file, whatever its name, and even if it is incomplete."""
    try:
        if not Path(path).is_file():
            return False
        with Path(path).open("rb") as file:
            head = file.read(30 + len(METADATA_PART))
    except (OSError, ValueError):
        return False
    return head.startswith(b"PK\x03\x04") and head[30:] == METADATA_PART.encode()


def open(path: str | os.PathLike[str], *, max_bytes: int = _MAX_BYTES) -> Run:
    """Read a saved run, equal in every field. Raises StoreError if the file is not a run, damaged, or too new.

    A run that would take more than `max_bytes` of memory is rejected before it is read.
    """
    source = Path(path)
    message = f"{source} cannot be read as a run."
    try:
        if not stat.S_ISREG(source.stat().st_mode):
            raise invalid_run_error("it is not a file", "use a file that gpulab.save(...) wrote")
        with source.open("rb") as file:
            return _run(Archive(file), max_bytes)
    except StoreError as error:
        raise StoreError(message, why=error.why, fix=error.fix) from error
    except MemoryError as error:
        fix = "free memory on this machine, or open the file on a larger one"
        raise StoreError(message, why="there is not enough memory for it", fix=fix) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise StoreError(f"{source} cannot be opened.", why=why, fix="check the path and its permissions") from error


def _run(archive: Archive, most_bytes: int) -> Run:
    """The run, with a gap in `recording.left_out` if the file contains parts that this version does not know."""
    document = decode_document(archive.read(METADATA_PART))
    texts = _tables(archive, document)
    allowance = MemoryAllowance(min(most_bytes, max(_RATIO_FROM_BYTES, _RATIO * archive.size)))
    fields, ignored = dict(document.fields), [*document.unknown]
    decode = _decoder(document.schema)
    for field, table in TABLE_FIELDS.items():
        if (text := texts.pop(part_name(table, document.schema), None)) is not None:
            fields[field], unknown = decode(table, text, allowance)
            ignored += [f"{table.name}: {name}" for name in unknown]
    known_parts = {METADATA_PART, *(part_name(table, document.schema) for table in TABLE_FIELDS.values())}
    ignored += [name for name in archive.parts if name not in known_parts]
    run = Run(**fields)
    if (problem := find_inconsistency(run)) is not None:
        raise invalid_run_error(f"it is damaged: {problem}")
    run, of_unknown_kinds = newer_schema.drop_unknown_kinds(run)
    return newer_schema.with_ignored_parts(run, [*ignored, *of_unknown_kinds], document.schema)


def _decoder(schema: Schema) -> Callable[[Table, bytes, MemoryAllowance], tuple[Rows, tuple[str, ...]]]:
    """What decodes the tables of this schema version. Raises StoreError if it needs pyarrow, which is missing."""
    if not is_parquet(schema):
        return decode_table
    if not is_installed("pyarrow"):
        why = (
            f"it was saved by an older gpulab, as Parquet (file schema {schema[0]}.{schema[1]}), and pyarrow is missing"
        )
        raise invalid_run_error(
            why, f"{install_command('parquet')}, then save the run again: gpulab.save(gpulab.load(path), path)"
        )
    return decode_parquet


def _tables(archive: Archive, document: Document) -> dict[str, bytes]:
    """Content of the parts with tables. Raises StoreError if one is missing or was changed."""
    suffix = table_suffix(document.schema)
    names = [part_name(table, document.schema) for table in TABLE_FIELDS.values()]
    texts = {name: archive.read(name) for name in names if name in archive.parts}
    for name in sorted({f"{table}.{suffix}" for table in document.sha256} - set(archive.parts)):
        raise invalid_run_error(f"its {name} is missing")
    for name, text in texts.items():
        if hashlib.sha256(text).hexdigest() != document.sha256.get(name.removesuffix(f".{suffix}")):
            raise invalid_run_error(f"its {name} is damaged: its SHA-256 is wrong")
    return texts
