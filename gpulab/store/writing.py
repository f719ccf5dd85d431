"""Write a run to one `.gpulab` file, atomically."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import zipfile
from pathlib import Path
from typing import BinaryIO

from gpulab.errors import StoreError
from gpulab.run import TABLE_FIELDS, Run
from gpulab.store.consistency import find_inconsistency
from gpulab.store.document import encode_document
from gpulab.store.format import MAX_METADATA_BYTES, METADATA_PART, SUFFIX, part_name
from gpulab.store.parquet_encoding import encode_table


def save(run: Run, path: str | os.PathLike[str]) -> Path:
    """Write a run atomically and return the path; `.gpulab` is appended if there is no suffix.

    Raises StoreError if it cannot be written.
    """
    target = Path(path)
    target = target if target.suffix else target.with_suffix(SUFFIX)
    # In the same folder, so that the last step is a rename, which is atomic.
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    message = f"The run {run.name!r} could not be saved to {target}."
    advice = "fix the code that created the run"
    if (problem := find_inconsistency(run)) is not None:
        raise StoreError(message, why=problem, fix=advice)
    try:
        with unfinished.open("xb") as file:
            _write(run, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(target)
    except OSError as error:
        fix = "check that the folder exists, is writable and has free space"
        raise StoreError(message, why=error.strerror or str(error), fix=fix) from error
    except (ValueError, TypeError, OverflowError, zipfile.LargeZipFile) as error:
        raise StoreError(message, why=str(error), fix=advice) from error
    finally:
        unfinished.unlink(missing_ok=True)
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
