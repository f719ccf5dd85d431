"""Cache of rank summaries: a folder or URL that all workers reach, so that an interrupted analysis resumes."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpulab import store
from gpulab.errors import StoreError
from gpulab.fleet.rank_files import RankFile
from gpulab.fleet.rank_summary import RankSummary, decode, encode
from gpulab.store.replaced_file import replaced_file

_READERS = ("analysis", "fleet", "hardware", "replay", "rules", "store", "trace")  # packages that a summary depends on


@dataclass(frozen=True)
class SummaryCache:
    """Summaries by path, size and time of change of their files, and by the code that computed them."""

    folder: str
    reader: str  # digest of that code

    def load(self, file: RankFile) -> RankSummary | None:
        """Return the summary of a file; None if there is none, or if the file cannot be told from a changed one."""
        if not file.version:
            return None
        try:
            return decode(self._read(self._name(file)))
        except (OSError, StoreError):  # OSError: not there
            return None

    def store(self, file: RankFile, summary: RankSummary) -> None:
        """Keep the summary of a file. Does nothing if the folder cannot be written."""
        if not file.version:
            return
        try:
            self._write(self._name(file), encode(summary))
        except OSError:  # the cache saves time and nothing else
            return

    def _name(self, file: RankFile) -> str:
        key = repr((file.path, file.size_bytes, file.version, self.reader))
        return f"{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()[:40]}.msgpack"

    def _read(self, name: str) -> bytes:
        if "://" not in self.folder:
            return Path(self.folder, name).read_bytes()
        data: bytes = self._file_system().cat_file(f"{self.folder.rstrip('/')}/{name}")
        return data

    def _write(self, name: str, data: bytes) -> None:
        if "://" in self.folder:
            self._file_system().pipe_file(f"{self.folder.rstrip('/')}/{name}", data)
            return
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        with replaced_file(Path(self.folder, name)) as target:
            target.write(data)

    def _file_system(self) -> Any:
        import fsspec

        return fsspec.core.url_to_fs(self.folder)[0]


@functools.cache
def reader_digest() -> str:
    """Return a digest of the code that computes summaries: another version may compute others."""
    package = Path(store.__file__).parents[1]
    digest = hashlib.sha256()
    for source in [
        *sorted(package.glob("*.py")),
        *(p for name in _READERS for p in sorted((package / name).rglob("*.py"))),
    ]:
        digest.update(source.read_bytes())
    return digest.hexdigest()
