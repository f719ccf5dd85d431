"""The commands of the command line and their options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeAlias

from gpulab.wording import usage_suggestion

_LEAST_BYTES = 10**7
LEVELS = ("sensors", "trace", "deep")
_EXAMPLES = """examples:
  gpulab run train.py --epochs 3                          record a script; its output and exit status stay the same
  torchrun --nproc-per-node 4 -m gpulab run train.py      record all ranks; rank 0 reports on the job
  gpulab fix train.py --epochs 3                          measure each fix: run the script with and without it
  gpulab report gpulab-results/train-20260101-120000      the report again, also of ranks that were killed
  gpulab whatif run.gpulab workers=4                      predict the step time after a change
  gpulab compare main.gpulab change.gpulab --fail-over 5% exit status 1 if a step takes more than 5 % longer
  gpulab watch --alert "idle < 30 % for 5 min while memory is held"    record all GPUs, and warn
  gpulab history 7d                                       the last week: use, cost, and what repeats
"""
_ALERTS = """alerts:
  idle < 30 % for 5 min while memory is held      utilisation below 30 %
  memory > 95 %                                   of the GPU's memory in use
  memory will run out in 20 min                   if it grows on as in the last ten minutes
  throttled, throttled by heat, throttled by power
  temperature > 85 C, power > 600 W
  memory errors, gpu lost

The environment variable GPULAB_WEBHOOK sets a URL that ps does not show.
"""


class _Parser(argparse.ArgumentParser):
    """A parser that answers a typing error with the nearest command, option or value."""

    commands: Mapping[str, _Parser]  # of the parser of all commands
    explains_changes = False  # list the changes of a what-if in the help, which loads them only when it is shown

    def error(self, message: str) -> NoReturn:
        options = (option for action in self._actions for option in action.option_strings if option.startswith("--"))
        near = usage_suggestion(message, options)
        super().error(f"{message}; {near}" if near else message)

    def format_help(self) -> str:
        if self.explains_changes:
            from gpulab.views.rule_page import change_lines

            self.formatter_class = argparse.RawDescriptionHelpFormatter
            self.epilog = "\n".join(("changes:", *change_lines()))
        return super().format_help()


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Exits with status 2 and a message on stderr if it is wrong."""
    top = parser()
    options, surplus = top.parse_known_args(arguments)
    if surplus:  # reported by the parser of the command, which knows its options
        top.commands[options.command].error(f"unrecognized arguments: {' '.join(surplus)}")
    return options


def parser() -> _Parser:
    """Return the parser of the command line."""
    top = _Parser(
        prog="gpulab",
        description="Find out why the GPU is idle: profile PyTorch programs from the shell.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    top.commands = commands.choices
    _add_run(commands)
    _add_fix(commands)
    _add_views(commands)
    _add_compare(commands)
    _add_watch(commands)
    lessons = commands.add_parser("lessons", help="copy the course notebooks into a folder; existing files are kept")
    lessons.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="default: gpulab-course")
    commands.add_parser("nbval", help="print the path of the settings file for pytest --nbval-sanitize-with")
    return top


_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


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


def _add_fix(commands: _Commands) -> None:
    fix = commands.add_parser(
        "fix",
        help="measure the fixes of a script: run it for some seconds with and without each",
        usage="gpulab fix [options] (SCRIPT | -m MODULE) [arguments of the program]",
        description="Run a script for some seconds unchanged and with the fix of each finding, in turn, and compare. "
        "The script itself stays as it is. What it writes in these runs is discarded.",
    )
    fix.add_argument(
        "--recording", type=Path, metavar="FILE", help="take the findings from this .gpulab file; default: record first"
    )
    fix.add_argument("--rule", metavar="RULE", help="only the fix of this finding, such as no_workers")
    fix.add_argument("--seconds", type=_trial_seconds, default=5.0, metavar="S", help="length of each run (default: 5)")
    fix.add_argument(
        "--no-protection", action="store_true", help="let the runs write files, start programs and use the network"
    )
    fix.add_argument("--save", type=Path, metavar="FILE", help="write the result as .html, .md or .txt")
    fix.add_argument("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module")
    fix.add_argument("program", nargs=argparse.REMAINDER, metavar="SCRIPT", help="script, and its arguments")


def _add_views(commands: _Commands) -> None:
    report = commands.add_parser("report", help="report on a recording, a trace, or a folder with those of all ranks")
    report.add_argument("path", metavar="PATH", help="a .gpulab file, a trace of torch.profiler, or a folder of ranks")
    report.add_argument("--save", type=Path, metavar="FILE", help="write the report as .html, .png, .md or .txt")
    report.add_argument("--json", action="store_true", help="print the figures as JSON instead")
    report.add_argument("--short", action="store_true", help="leave out the details")
    report.add_argument("--all", action="store_true", help="also list the checks that could not run, with the reasons")
    whatif = commands.add_parser("whatif", help="predict the step time after changes")
    whatif.explains_changes = True
    whatif.add_argument("path", metavar="PATH", help="a .gpulab file, a trace of torch.profiler, or a folder of ranks")
    whatif.add_argument("changes", nargs="*", metavar="CHANGE", help="workers=4, amp=bf16, ...; none: rank all of them")
    why = commands.add_parser("why", help="explain a rule or a change; without a name, list them")
    why.add_argument("name", nargs="?", metavar="NAME")
    commands.add_parser("info", help="show this machine, and what can be measured on it")


def _add_watch(commands: _Commands) -> None:
    watch = commands.add_parser(
        "watch",
        help="record all GPUs and their processes until it is stopped, and warn",
        description="Record every GPU, its processes and the host once a second, in a database of limited size:\n"
        "seconds for a day, minutes for a month, hours for ever. Stop it with Ctrl-C.",
        epilog=_ALERTS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    watch.add_argument("--every", type=_whole_seconds, default=1, metavar="SECONDS", help="time between two readings")
    _add_database(watch)
    watch.add_argument(
        "--alert", action="append", default=[], metavar="WORDS", help='such as "throttled"; can be repeated'
    )
    watch.add_argument("--webhook", action="append", default=[], metavar="URL", help="post alerts as {'text': ...}")
    watch.add_argument("--quiet-hours", metavar="22-7", help="deliver alerts after these hours only")
    watch.add_argument("--for", dest="duration", metavar="TIME", help="stop after this time: 10m, 8h; default: never")
    watch.add_argument("--max-size", type=_size, metavar="SIZE", help="of the database: 500MB; default: 2GB")
    watch.add_argument("--unit", action="store_true", help="print a systemd unit for this command instead")
    watch.add_argument(
        "--prometheus",
        type=_address,
        metavar="[HOST:]PORT",
        help="also serve the readings to Prometheus; default: on all interfaces",
    )
    history = commands.add_parser("history", help="what gpulab watch recorded: use, cost, patterns, events")
    history.add_argument("span", nargs="?", default="7d", metavar="TIME", help="24h, 7d, 2w or 1m; default: 7d")
    _add_database(history)
    history.add_argument("--price", metavar="PRICE", help='per GPU-hour: "2.50", "2.50 EUR" or "H100=3.20,A100=1.60"')
    history.add_argument("--save", type=Path, metavar="FILE", help="write it as .html, .md or .txt")


def _add_database(command: argparse.ArgumentParser) -> None:
    command.add_argument("--database", type=Path, metavar="FILE", help="default: a file in the user's data folder")


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


def _trial_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.2 <= seconds <= 600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.2 to 600")
    return seconds


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


def _whole_seconds(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 60:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 1 to 60")
    return int(text)


def _size(text: str) -> int:
    units = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "": 1}
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?b?)", text.strip().lower())
    unit = "" if match is None else match[2] if match[2].endswith("b") or not match[2] else f"{match[2]}b"
    if match is None or unit not in units or float(match[1]) * units[unit] < _LEAST_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size of at least 10MB")
    return int(float(match[1]) * units[unit])


def _address(text: str) -> tuple[str, int]:
    """Return "9400" or "127.0.0.1:9400" as host and port."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port, or a host and a port: 127.0.0.1:9400")
    return host or "0.0.0.0", int(port)
