"""Measure on a machine with a GPU what cannot be measured without one, in stages, the most valuable first.

    python tools/gpu_visit.py --minutes 20 --out build/gpu_visit    run the stages that have no result there yet
    python tools/gpu_visit.py --list                                the stages
    python tools/gpu_visit.py --only planted --again planted        repeat one stage
    python tools/gpu_visit.py --dry-run                             on the CPU, with tiny sizes: shows that stages run
    python tools/gpu_visit.py --device-command                      what to run on a bare machine without network

Each stage runs in a process of its own, within its limit and the budget. A stage that fails or is stopped leaves its
result too, and the next one starts. Results are JSON files and runs in the folder, and one table, summary.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.gpu_visit.bare_machine import RESULTS, WHEELS, device_command, prepare_command
from benchmarks.gpu_visit.catalogue import STAGES, Stage
from benchmarks.gpu_visit.runner import FAILURES, Plan, run_stages, statuses
from benchmarks.gpu_visit.summary import SUMMARY, write_archive, write_summary

OUT, DRY_OUT = Path("build/gpu_visit"), Path("build/gpu_visit_dry_run")


def main(arguments: Sequence[str] | None = None, stages: Sequence[Stage] = STAGES) -> int:
    """Run the stages and write the summary; return 1 if one of them crashed, failed or was stopped at its limit."""
    options = parser_of(stages).parse_args(arguments)
    if options.list:
        for stage in stages:
            print(f"{stage.name:15} {stage.limit_s:4} s  {stage.about}")
        return 0
    if options.device_command:
        print(f"# here, once, with network:\n{prepare_command()}")
        print(f"# copy the clone with {WHEELS}/ and, to continue, with {RESULTS}/ as gpu_visit.zip holds it")
        print(f"# on the machine with a GPU, in the clone; OUT names the folder for the results:\n{device_command()}")
        return 0
    folder = options.out or (DRY_OUT if options.dry_run else OUT)
    plan = Plan(
        folder=folder,
        ends_s=time.monotonic() + 60 * options.minutes,
        dry_run=options.dry_run,
        again=tuple(options.again),
    )
    chosen = [stage for stage in stages if not options.only or stage.name in options.only]

    def finish_stage() -> None:
        write_summary(stages, folder)
        if options.archive:
            write_archive(folder, options.archive)

    try:
        run_stages(chosen, plan, lambda line: print(line, flush=True), finish_stage)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    finish_stage()
    print((folder / SUMMARY).read_text(encoding="utf-8"))
    return 1 if FAILURES & set(statuses(chosen, folder)) else 0


def parser_of(stages: Sequence[Stage]) -> argparse.ArgumentParser:
    """The command line."""
    names = [stage.name for stage in stages]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0, help="the budget of this call")
    parser.add_argument("--out", type=Path, help=f"the folder of the results, where a later call continues; {OUT}")
    parser.add_argument("--archive", type=Path, help="a zip file of the folder, renewed after each stage")
    parser.add_argument("--only", action="append", choices=names, default=[], help="this stage alone; repeatable")
    parser.add_argument("--again", action="append", choices=names, default=[], help="repeat this stage; repeatable")
    parser.add_argument("--dry-run", action="store_true", help="without a GPU, with tiny sizes; nothing passes")
    parser.add_argument("--list", action="store_true", help="list the stages")
    parser.add_argument("--device-command", action="store_true", help="print the command for a bare machine")
    return parser


if __name__ == "__main__":
    sys.exit(main())
