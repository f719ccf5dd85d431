"""The process of one stage: `python -m benchmarks.gpu_visit.child TARGET FOLDER STAGE SECONDS [--dry-run]`."""

from __future__ import annotations

import argparse
import importlib
import time
from pathlib import Path

from benchmarks.gpu_visit.visit import NO_CUDA, StageResult, Visit


def main() -> None:
    """Run the stage and leave its result; an error ends the process with its traceback."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", help="module:function")
    parser.add_argument("folder", type=Path)
    parser.add_argument("stage")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    ends_s = time.monotonic() + options.seconds
    visit = Visit(folder=options.folder, stage=options.stage, ends_s=ends_s, dry_run=options.dry_run)
    visit.save(result_of(options.target, visit))


def result_of(target: str, visit: Visit) -> StageResult:
    """The result of the stage's function; without a GPU, that it was skipped."""
    if not visit.dry_run:
        import torch

        if not torch.cuda.is_available():
            return StageResult(skipped=NO_CUDA)
    module, _, function = target.partition(":")
    result: StageResult = getattr(importlib.import_module(module), function)(visit)
    return result


if __name__ == "__main__":
    main()
