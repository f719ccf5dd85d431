"""What a stage is given, and what it returns."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpulab
from gpulab.run import Run

MAX_RUN_BYTES = 2_000_000
NO_CUDA = "no CUDA device"


@dataclass(frozen=True, kw_only=True)
class Check:
    """Something that must be true of a result; `holds` is None if it could not be judged."""

    name: str
    holds: bool | None
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """What a stage measured: a headline, figures for a JSON file, checks, and rows of a table."""

    headline: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    checks: Sequence[Check] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    skipped: str = ""  # why the stage did not run


@dataclass(frozen=True, kw_only=True)
class Visit:
    """Where a stage writes, on which device it runs, and how long it may take."""

    folder: Path
    stage: str
    ends_s: float  # on time.monotonic()
    dry_run: bool = False

    @property
    def device(self) -> str:
        """The device that loops train on."""
        return "cpu" if self.dry_run else "cuda"

    @property
    def seconds_left(self) -> float:
        """Seconds until the stage is stopped."""
        return self.ends_s - time.monotonic()

    @property
    def outcome_file(self) -> Path:
        """Where the stage leaves its result for the runner."""
        return self.folder / f".{self.stage}.outcome"

    def parts_folder(self) -> Path:
        """The folder for files of this stage's parts; a repeated stage continues with those that are missing."""
        folder = self.folder / self.stage
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def save(self, result: StageResult) -> None:
        """Leave the result for the runner; a stage that is stopped later has at least this one."""
        checks = [{"name": each.name, "holds": each.holds, "detail": each.detail} for each in result.checks]
        document = {
            "headline": result.headline,
            "figures": result.figures,
            "checks": checks,
            "head": list(result.head),
            "rows": [list(row) for row in result.rows],
            "skipped": result.skipped,
        }
        write_json(self.outcome_file, document)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, in one go; numbers that are not finite become null."""
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_text(json.dumps(_finite(value), indent=1, default=str, allow_nan=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def read_json(path: Path) -> Any:
    """Read a JSON file; None if there is none, or if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def save_run(run: Run, path: Path) -> str:
    """Save a run if its file is small enough; return its size, or why there is no file."""
    gpulab.save(run, path)
    size = path.stat().st_size
    if size <= MAX_RUN_BYTES:
        return f"{size:,} bytes"
    path.unlink()
    return f"not saved: {size:,} bytes, {MAX_RUN_BYTES:,} at most"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value
