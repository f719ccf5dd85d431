"""The zip file of a run: every part is checked before it is read, and nothing is unpacked to disk."""

from __future__ import annotations

import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from gpulab.store.format import MAX_FILE_BYTES, MAX_METADATA_BYTES, METADATA_PART, TRUSTED_FILES_ONLY, invalid_run_error

_END_BYTES = 22  # the end record of a zip file; ours has no comment after it
_LOCATOR_BYTES = 20  # comes before it in zip files larger than ours can be
_LISTING_BYTES = 2**20  # upper limit for the list of parts; ours has ten entries
_ENCRYPTED_FLAGS = 0x1 | 0x40 | 0x2000
_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)*", re.ASCII)


class Archive:
    """The parts of an open file. Raises StoreError, here and when reading, for anything that gpulab never writes."""

    def __init__(self, file: BinaryIO) -> None:
        self.size = file.seek(0, 2)
        self._members: dict[str, zipfile.ZipInfo] = {}
        _check_end(file, self.size)
        with _damage("it is damaged or of another format"):
            self._zip = zipfile.ZipFile(file)
        for member in self._zip.infolist():
            _check_member(member)
            if member.filename in self._members:
                raise invalid_run_error(f"it contains {member.filename} twice", TRUSTED_FILES_ONLY)
            self._members[member.filename] = member
        if METADATA_PART not in self._members:
            raise invalid_run_error(
                f"it is another kind of zip file, without {METADATA_PART}", "use a file that gpulab.save(...) wrote"
            )

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of all parts."""
        return tuple(self._members)

    def read(self, name: str) -> bytes:
        """Bytes of one part, exactly as many as its entry says."""
        member = self._members[name]
        if member.compress_type == zipfile.ZIP_STORED:
            # An uncompressed part cannot be larger than the file.
            fits = member.file_size == member.compress_size <= self.size
        else:
            fits = (
                name == METADATA_PART
                and member.compress_type == zipfile.ZIP_DEFLATED
                and member.file_size <= MAX_METADATA_BYTES
            )
        if not fits:
            raise invalid_run_error(
                f"its {name} claims {member.file_size:,} bytes, or has an unknown compression", TRUSTED_FILES_ONLY
            )
        with _damage(f"its {name} is damaged"), self._zip.open(member) as part:
            text = part.read(member.file_size)
            if len(text) != member.file_size:
                raise EOFError("it ends early")
            return text


def _check_end(file: BinaryIO, size: int) -> None:
    """Check the size of the list of parts, which is read all at once."""
    if size > MAX_FILE_BYTES:
        raise invalid_run_error(f"it is larger than any run can be ({size:,} bytes)", TRUSTED_FILES_ONLY)
    file.seek(max(0, size - _END_BYTES - _LOCATOR_BYTES))
    tail = file.read()
    end = tail[-_END_BYTES:]
    if len(end) < _END_BYTES or not end.startswith(b"PK\x05\x06") or end[-2:] != b"\0\0":
        raise invalid_run_error("it ends early, or is of another format")
    if tail.startswith(b"PK\x06\x07") or int.from_bytes(end[12:16], "little") > _LISTING_BYTES:
        raise invalid_run_error("it claims to contain more than any run", TRUSTED_FILES_ONLY)


def _check_member(member: zipfile.ZipInfo) -> None:
    name = member.filename
    if name != member.orig_filename or not _NAME.fullmatch(name):
        raise invalid_run_error(
            f"it contains a part named {member.orig_filename[:100]!r}, which no run has", TRUSTED_FILES_ONLY
        )
    if member.flag_bits & _ENCRYPTED_FLAGS:
        raise invalid_run_error(f"its {name} is encrypted", "ask for a file that gpulab.save(...) wrote")
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
        raise invalid_run_error(f"its {name} is a link or a device, not a file", TRUSTED_FILES_ONLY)


@contextmanager
def _damage(problem: str) -> Iterator[None]:
    """Convert any exception of zipfile for a damaged file to a StoreError."""
    try:
        yield
    except (
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        EOFError,
        KeyError,
        ValueError,
        RuntimeError,  # encrypted; includes NotImplementedError for a compression that Python does not support
        OverflowError,
        OSError,  # a position before the beginning of the file
    ) as error:
        raise invalid_run_error(f"{problem} ({error})") from error
