"""The commands of the command line and their options."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TypeAlias

LEVELS = ("sensors", "trace", "deep")
_EXAMPLES = """examples:
  gpulab run train.py --epochs 3                          record a script; its output and exit status stay the same
  torchrun --nproc-per-node 4 -m gpulab run train.py      record all ranks; rank 0 reports on the job
  gpulab report gpulab-results/train-20260101-120000      the report again, also of ranks that were killed
  gpulab whatif run.gpulab workers=4                      predict the step time after a change
  gpulab compare main.gpulab change.gpulab --fail-over 5% exit status 1 if a step takes more than 5 % longer
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="gpulab",
        description="Find out why the GPU is idle: profile PyTorch programs from the shell.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_views(commands)
    _add_compare(commands)
    lessons = commands.add_parser("lessons", help="copy the course notebooks into a folder; existing files are kept")
    lessons.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="default: gpulab-course")
    commands.add_parser("nbval", help="print the path of the settings file for pytest --nbval-sanitize-with")
    return top


_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add_run(commands: _Commands) -> None:
    run = commands.add_parser(
        "run",
        help="record a program and report why the GPU is idle",
        usage="gpulab run [options] (SCRIPT | -m MODULE) [arguments of the program]",
        description="Run a program as python would, record it, and report on stderr when it ends.",
    )
    run.add_argument("--level", choices=LEVELS, default="trace", help="what to record (default: trace)")
    run.add_argument("--steps", type=_steps, metavar="N", help="steps to record (default: as many as needed)")
    run.add_argument("--out", type=Path, metavar="DIR", help="folder of the results (default: gpulab-results/...)")
    run.add_argument("--overwrite", action="store_true", help="replace a recording that --out contains")
    run.add_argument("--virtual", metavar="GPU", help="run CUDA code on a virtual GPU: h100, a100, ...")
    run.add_argument("--quiet", action="store_true", help="write the results, but print no report")
    run.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module")
    run.add_argument("program", nargs=argparse.REMAINDER, metavar="SCRIPT", help="script, and its arguments")


def _add_views(commands: _Commands) -> None:
    report = commands.add_parser("report", help="report on a recording, a trace, or a folder with those of all ranks")
    report.add_argument("path", metavar="PATH", help="a .gpulab file, a trace of torch.profiler, or a folder of ranks")
    report.add_argument("--save", type=Path, metavar="FILE", help="write the report as .html, .png, .md or .txt")
    report.add_argument("--json", action="store_true", help="print the figures as JSON instead")
    report.add_argument("--short", action="store_true", help="leave out the details")
    whatif = commands.add_parser("whatif", help="predict the step time after changes")
    whatif.add_argument("path", metavar="PATH", help="a .gpulab file, a trace of torch.profiler, or a folder of ranks")
    whatif.add_argument("changes", nargs="*", metavar="CHANGE", help="workers=4, amp=bf16, ...; none: rank all of them")
    why = commands.add_parser("why", help="explain a rule or a change; without a name, list them")
    why.add_argument("name", nargs="?", metavar="NAME")
    commands.add_parser("info", help="show this machine, and what can be measured on it")


def _add_compare(commands: _Commands) -> None:
    compare = commands.add_parser(
        "compare",
        help="compare two recordings; as a test, fail if the second is slower",
        description="Compare two recordings. Repeat a side for more certainty: A1.gpulab,A2.gpulab B1.gpulab,B2.gpulab",
    )
    compare.add_argument("before", metavar="BEFORE", help="a recording, or several with commas, or a pattern")
    compare.add_argument("after", metavar="AFTER")
    compare.add_argument(
        "--fail-over",
        type=_fraction,
        metavar="PERCENT",
        help="exit with status 1 if a step of AFTER takes this much longer and noise does not explain it",
    )
    compare.add_argument("--save", type=Path, metavar="FILE", help="write the comparison as .html, .md or .txt")


def _steps(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps: give 1 or more")
    return int(text)


def _fraction(text: str) -> float:
    """Return "5%" or "5" as 0.05."""
    try:
        percentage = float(text.strip().removesuffix("%"))
    except ValueError:
        percentage = -1.0
    if not 0 <= percentage < 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage: write 5% or 5")
    return percentage / 100
