"""What may stand on a magic's line, written once: for parsing, for help and for completion."""

from __future__ import annotations

import argparse
import keyword
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument, kwds, magic_arguments

from gpulab.errors import RunError
from gpulab.hardware.lookup import resolve
from gpulab.virtual.cuda_available import AUTO, USUAL, cuda_here

LEVELS = ("sensors", "trace", "deep")
MONITOR_PERIOD_S = 0.5  # between two readings of the sensors
SAVED_AS = (".gpulab", ".html")
_NAME = re.compile(r"[^\W\d][\w.-]*")

_HELP = argument("-h", "--help", action="store_true", help="show this and do nothing else")
_NAME_ARGUMENT = argument("name", nargs="?", metavar="NAME", help="name of the run; run1, run2, ... if left out")
_RECORD = (
    argument("-o", "--out", metavar="VAR", help="variable to which the finished run is bound"),
    argument("-l", "--level", choices=LEVELS, metavar="LEVEL", help="sensors, trace (usual) or deep (stacks, memory)"),
    argument("-n", "--steps", type=int, metavar="N", help="steps to record; as many as a verdict needs if left out"),
    argument(
        "-g", "--virtual", metavar="GPU", help="a GPU to play, as h100: CUDA code runs; auto: where there is none"
    ),
    argument("--no-live", dest="live", action="store_false", help="show nothing before the report"),
    argument("-s", "--save", metavar="FILE", help="also save the run (.gpulab) or the report (.html)"),
    _HELP,
)
PROFILE = (_NAME_ARGUMENT, *_RECORD)
REPORT = (argument("name", nargs="?", metavar="NAME", help="a run; the last one if left out"), _HELP)
COMPARE = (
    argument("before", nargs="?", metavar="BEFORE", help="the run to measure against"),
    argument("after", nargs="?", metavar="AFTER", help="the run after the change"),
    argument("more", nargs="*", metavar="MORE", help="runs after further changes; or what was changed: workers=2"),
    _HELP,
)
WHATIF = (
    argument("name", nargs="?", metavar="NAME", help="a run; the last one if left out"),
    argument("changes", nargs="*", metavar="CHANGE", help="as workers=6 or amp=bf16; what would help if left out"),
    _HELP,
)
TIMELINE = (
    argument("name", nargs="?", metavar="NAME", help="the run; the last one if left out"),
    argument("beside", nargs="*", metavar="OTHER", help="what stands below it: a run, or changes such as workers=6"),
    _HELP,
)
MONITOR = (
    argument("name", nargs="?", metavar="NAME", help="name of the run; run1, run2, ... if left out"),
    argument("--stop", action="store_true", help="end the monitor that runs, and report"),
    argument("--every", type=float, default=MONITOR_PERIOD_S, metavar="SECONDS", help="how often the sensors are read"),
    argument("--threshold", type=float, default=0.5, metavar="SHARE", help="a GPU under it for 10 s is told: 0.5"),
    _HELP,
)
INFO = (_HELP,)
WHY = (
    argument(
        "rule", nargs="?", metavar="NAME", help="a rule, as `no_workers`, or a change; all are listed if left out"
    ),
    _HELP,
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a %%gpuprofile line asks for, checked; None where it leaves the choice to the settings."""

    name: str | None = None
    out: str | None = None
    level: str | None = None
    steps: int | None = None
    virtual: str | None = None
    live: bool = True
    save: Path | None = None
    help: bool = False


def accepts(*arguments: argument) -> Callable[[Any], Any]:
    """Give a magic these arguments: a parser as `.parser`, and its docstring grows into the full help."""

    def decorate(method: Any) -> Any:
        doc = method.__doc__ or ""
        for each in reversed(arguments):
            method = each(method)
        return magic_arguments()(kwds(description=doc)(method))

    return decorate


def parsed(magic: Callable[..., Any], line: str) -> argparse.Namespace:
    """The line's arguments. Raises UsageError; with --help among them, nothing else is looked at."""
    words = _split(line)
    if "-h" in words or "--help" in words:
        return argparse.Namespace(help=True)
    return magic.parser.parse_args(words)  # type: ignore[attr-defined, no-any-return]


def request(magic: Callable[..., Any], line: str) -> Request:
    """The line of %%gpuprofile, checked so far that a long training run does not end in a spelling mistake."""
    asked = Request(**vars(parsed(magic, line)))
    if asked.help:
        return asked
    if asked.name is not None and not _NAME.fullmatch(asked.name):
        raise UsageError(f"{asked.name!r} cannot name a run: use a word such as before, run2 or lr-0.1")
    if asked.out is not None and (not asked.out.isidentifier() or keyword.iskeyword(asked.out)):
        raise UsageError(f"{asked.out!r} cannot name a variable: -o takes a Python name")
    if asked.steps is not None and asked.steps < 1:
        raise UsageError(f"--steps {asked.steps}: at least one step is needed")
    if asked.virtual is not None:
        asked = _playable(asked)
    if asked.save is None:
        return asked
    return Request(**{**vars(asked), "save": _writable(str(asked.save))})


def _playable(asked: Request) -> Request:
    """The same, without a GPU to play where "auto" finds a real one; UsageError where it cannot be played."""
    if asked.level is not None:
        raise UsageError("--virtual takes no --level: a virtual run is worked out, always as far; leave --level out")
    if asked.virtual == AUTO:
        return Request(**{**vars(asked), "virtual": None if cuda_here() else USUAL})
    try:
        resolve(asked.virtual or "")
    except RunError as error:
        raise UsageError(f"--virtual {asked.virtual}: {error}") from None
    return asked


def split_statement(line: str) -> tuple[str, str]:
    """Options and code of `%gpuprofile [options] statement`; the code is left exactly as it was typed."""
    taking_value = {word for each in _RECORD if "action" not in each.kwds for word in each.args}
    rest, taken = line.lstrip(), ""
    while match := re.match(r"(--?[A-Za-z][\w-]*)(=\S*)?(\s+|$)", rest):
        taken, rest = taken + match[0], rest[match.end() :]
        if match[1] in taking_value and not match[2]:
            value = re.match(r"(\"[^\"]*\"|'[^']*'|\S+)(\s+|$)", rest)
            if value:
                taken, rest = taken + value[0], rest[value.end() :]
    return taken.strip(), rest.removeprefix("-- ")


def options(arguments: tuple[argument, ...]) -> dict[str, tuple[str, ...]]:
    """Every option of a magic with the values it chooses from (none for free values)."""
    return {
        word: tuple(each.kwds.get("choices", ())) for each in arguments for word in each.args if word.startswith("--")
    }


def _split(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    lexer.escape = ""  # a backslash is part of a Windows path, not an escape
    try:
        return list(lexer)
    except ValueError as error:
        raise UsageError(f"{line.strip()}: {error}".replace("No closing", "no closing")) from None


def _writable(name: str) -> Path:
    path = Path(name).expanduser()
    if path.suffix not in SAVED_AS:
        raise UsageError(f"--save {name}: the name must end in .gpulab (the run) or .html (the report)")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--save {name}: there is no folder {path.absolute().parent}")
    return path
