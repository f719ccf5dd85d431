"""Replace a file atomically: readers see the old content or the new, never a part, whatever happens."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replaced_file(path: Path, *, durable: bool = False) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of `path` when the block ends; after an exception nothing is left.

    It has the permissions of any file that the user creates. `durable` waits until the content is on the disk. Raises
    OSError if it cannot be written.
    """
    # In the same folder, so that the last step is a rename. Its name is short: the name of the file may be the longest
    # that the file system allows. The system applies the umask; to read it would mean to change it for all threads.
    unfinished = _next_to(path)
    try:
        # No os.open(): a Ctrl-C right after it would leave a descriptor that nobody closes.
        with unfinished.open("xb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _next_to(path: Path) -> Path:
    """Return a new name in the same folder. Raises OSError for a path that no file can have."""
    if not path.name or "\0" in str(path):
        raise OSError(
            errno.EINVAL, "the path has no file name" if not path.name else "the path contains a NUL character"
        )
    return path.with_name(f".gpulab-{secrets.token_hex(8)}.part")
