"""Write a run to one `.gpulab` file, atomically."""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
from pathlib import Path
from typing import BinaryIO

from gpulab.errors import StoreError
from gpulab.run import TABLE_FIELDS, Run
from gpulab.store.consistency import find_inconsistency
from gpulab.store.document import encode_document
from gpulab.store.format import MAX_METADATA_BYTES, METADATA_PART, SUFFIX, part_name
from gpulab.store.replaced_file import replaced_file
from gpulab.store.table_encoding import encode_table
from gpulab.wording import shorten


def save(run: Run, path: str | os.PathLike[str]) -> Path:
    """Write a run atomically and return the path; `.gpulab` is appended if there is no suffix.

    Raises StoreError if it cannot be written.
    """
    target = Path(path)
    target = target if target.suffix or not target.name else target.with_suffix(SUFFIX)
    message = f"The run {run.name!r} could not be saved to {shorten(str(target), 300)}."
    advice = "fix the code that created the run"
    if (problem := find_inconsistency(run)) is not None:
        raise StoreError(message, why=problem, fix=advice)
    try:
        with replaced_file(target, durable=True) as file:
            _write(run, file)
    except OSError as error:
        fix = "check that the folder exists, is writable and has free space, and that the path is valid"
        raise StoreError(message, why=error.strerror or str(error), fix=fix) from error
    except (ValueError, TypeError, OverflowError, zipfile.LargeZipFile) as error:
        raise StoreError(message, why=str(error), fix=advice) from error
    return target


def _write(run: Run, file: BinaryIO) -> None:
    rows = {table: getattr(run, field) for field, table in TABLE_FIELDS.items()}
    tables = {table: encode_table(rows[table]) for table in rows if len(rows[table])}
    sums = {table.name: hashlib.sha256(text).hexdigest() for table, text in tables.items()}
    meta = encode_document(run, sums)
    if len(meta) > MAX_METADATA_BYTES:
        raise ValueError(f"its metadata takes {len(meta):,} bytes, more than the maximum of {MAX_METADATA_BYTES:,}")
    with zipfile.ZipFile(file, "w", allowZip64=False) as archive:
        # First, because `is_run` recognises a file by it.
        archive.writestr(_member(METADATA_PART), meta, zipfile.ZIP_DEFLATED)
        for table, text in tables.items():
            archive.writestr(_member(part_name(table)), text)


def _member(name: str) -> zipfile.ZipInfo:
    """Metadata of a zip entry, the same on every system and day, with usual permissions for unpacking."""
    member = zipfile.ZipInfo(name)
    member.create_system = 3  # Unix, so that the permissions apply
    member.external_attr = (stat.S_IFREG | 0o644) << 16
    return member
