"""Arguments of every magic, declared once for parsing, help and completion."""

from __future__ import annotations

import argparse
import keyword
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument, kwds, magic_arguments

from gpulab.capture.protection.cuda_check import is_cuda_available
from gpulab.capture.run_registry import runs
from gpulab.errors import GpulabError, RunError
from gpulab.hardware.lookup import resolve
from gpulab.virtual.default_gpu import AUTO, DEFAULT_GPU
from gpulab.wording import usage_suggestion

LEVELS = ("sensors", "trace", "deep")
MONITOR_PERIOD_S = 0.5  # between two sensor readings
SAVE_SUFFIXES = (".gpulab", ".html")
_NAME = re.compile(r"[^\W\d][\w.-]*")
_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|\S)+""")
_SURPLUS = re.compile(r"unrecognized arguments: ([^-].*)")

_HELP = argument("-h", "--help", action="store_true", help="show this help and exit")
_NAME_ARGUMENT = argument("name", nargs="?", metavar="NAME", help="name of the run; default: run1, run2, ...")
_RECORD = (
    argument("-o", "--out", metavar="VAR", help="variable that receives the finished run"),
    argument(
        "-l", "--level", choices=LEVELS, metavar="LEVEL", help="sensors, trace (default) or deep (stacks, memory)"
    ),
    argument("-n", "--steps", type=int, metavar="N", help="steps to record; default: as many as a diagnosis needs"),
    argument(
        "-g",
        "--virtual",
        metavar="GPU",
        help="run CUDA code on a virtual GPU, e.g. h100; auto: only if there is no CUDA GPU",
    ),
    argument("--no-live", dest="live", action="store_false", help="do not show the live panel"),
    argument("-s", "--save", metavar="FILE", help="also save the run (.gpulab) or the report (.html)"),
    argument("-c", "--compare", metavar="BEFORE", help="show the comparison with this run instead of the report"),
    _HELP,
)
PROFILE = (_NAME_ARGUMENT, *_RECORD)
REPORT = (
    argument("name", nargs="?", metavar="NAME", help="a run, or the path of a file; default: the last run"),
    argument("--all", action="store_true", help="also list the checks that could not run, with the reasons"),
    _HELP,
)
COMPARE = (
    argument("before", nargs="?", metavar="BEFORE", help="the baseline run"),
    argument("after", nargs="?", metavar="AFTER", help="the run after the change"),
    argument("more", nargs="*", metavar="MORE", help="runs after further changes, or the change itself: workers=2"),
    _HELP,
)
WHATIF = (
    argument("name", nargs="?", metavar="NAME", help="a run; default: the last one"),
    argument("changes", nargs="*", metavar="CHANGE", help="e.g. workers=6 or amp=bf16; default: every known change"),
    _HELP,
)
TIMELINE = (
    argument("name", nargs="?", metavar="NAME", help="the run; default: the last one"),
    argument("others", nargs="*", metavar="OTHER", help="shown below it: a run, or changes such as workers=6"),
    _HELP,
)
MONITOR = (
    argument("name", nargs="?", metavar="NAME", help="name of the run; default: run1, run2, ..."),
    argument("--stop", action="store_true", help="stop the running monitor and show its report"),
    argument("--every", type=float, default=MONITOR_PERIOD_S, metavar="SECONDS", help="time between sensor readings"),
    argument(
        "--threshold",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="warn about a GPU that is below this utilisation for 10 s; default: 0.5",
    ),
    argument("--alert", action="append", metavar="WORDS", help='warn: "waiting for data > 40 %%"; can be repeated'),
    argument("--webhook", metavar="URL", help="also post alerts there"),
    argument("--keep", action="store_true", help="also record all GPUs in the history that %%gpuhistory shows"),
    _HELP,
)
HISTORY = (
    argument("span", nargs="?", default="7d", metavar="TIME", help="24h, 7d (default), 2w or 1m"),
    argument("--price", metavar="PRICE", help='per GPU-hour: "2.50", "2.50 EUR" or "H100=3.20,A100=1.60"'),
    argument("--database", metavar="FILE", help="default: the history of this user"),
    _HELP,
)
FIX = (
    argument("name", nargs="?", metavar="NAME", help="a run of this session; default: the last one"),
    argument("--rule", metavar="RULE", help="the finding whose fix to try; default: the first one with code"),
    argument("--all", action="store_true", help="try the fix of each finding, then all that help together"),
    argument("--seconds", type=float, metavar="SECONDS", help="how long each run lasts; default: 3, with --all 2"),
    _HELP,
)
INFO = (_HELP,)
WHY = (
    argument("rule", nargs="?", metavar="NAME", help="a rule, e.g. `no_workers`, or a change; default: list them all"),
    _HELP,
)
ARGUMENTS = {
    "gpuprofile": PROFILE,
    "gpumonitor": MONITOR,
    "gpuhistory": HISTORY,
    "gpureport": REPORT,
    "gputimeline": TIMELINE,
    "gpucompare": COMPARE,
    "gpuwhatif": WHATIF,
    "gpufix": FIX,
    "gpuinfo": INFO,
    "gpuwhy": WHY,
}


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """Checked options of a %%gpuprofile line; None: use the settings of the magics."""

    name: str | None = None
    out: str | None = None
    level: str | None = None
    steps: int | None = None
    virtual: str | None = None
    live: bool = True
    save: Path | None = None
    compare: str | None = None
    help: bool = False


def with_arguments(*arguments: argument) -> Callable[[Any], Any]:
    """Give a magic these arguments: adds the parser as `.parser` and the full help to its docstring."""

    def decorate(method: Any) -> Any:
        doc = method.__doc__ or ""
        for add_argument in reversed(arguments):
            method = add_argument(method)
        return magic_arguments()(kwds(description=doc)(method))

    return decorate


def parse_line(magic: Callable[..., Any], line: str) -> argparse.Namespace:
    """Parse the line of a magic. Raises UsageError. If --help is present, no other option is checked."""
    tokens = _split(line)
    if "-h" in tokens or "--help" in tokens:
        return argparse.Namespace(help=True)
    try:
        return magic.parser.parse_args(tokens)  # type: ignore[attr-defined, no-any-return]
    except UsageError as error:
        raise UsageError(_with_suggestion(magic, str(error))) from None


def _with_suggestion(magic: Callable[..., Any], message: str) -> str:
    """Return a message of argparse with the nearest option or value, and where the options are explained."""
    name = magic.__name__
    surplus = _SURPLUS.search(message)
    if surplus is not None and name == "gpuprofile":
        near = f"a run has one name, of one word, so {surplus[1]!r} is too much"
    else:
        near = usage_suggestion(message, option_choices(ARGUMENTS[name]))
    return "; ".join(filter(None, (message, near, f"%{name} --help explains the options")))


def parse_profile_line(magic: Callable[..., Any], line: str) -> ProfileOptions:
    """Parse the line of %%gpuprofile and check it, so that a long training run does not end in a typing error."""
    options = ProfileOptions(**vars(parse_line(magic, line)))
    if options.help:
        return options
    if options.name is not None and not _NAME.fullmatch(options.name):
        raise UsageError(
            f"{options.name!r} is not a valid name for a run: it begins with a letter, and has no blanks; for example "
            f"{_valid_name(options.name)}"
        )
    if options.out is not None and (not options.out.isidentifier() or keyword.iskeyword(options.out)):
        raise UsageError(f"{options.out!r} is not a valid variable name: -o takes a Python identifier")
    if options.steps is not None and options.steps < 1:
        raise UsageError(f"--steps {options.steps}: must be at least 1")
    if options.compare is not None:
        _check_is_run(options.compare)
    if options.virtual is not None:
        options = _resolve_virtual(options)
    if options.save is None:
        return options
    return ProfileOptions(**{**vars(options), "save": _checked_save_path(str(options.save))})


def _valid_name(name: str) -> str:
    """The name with what it cannot have replaced: "my_run" for "my run"."""
    valid = re.sub(r"[^\w.-]+", "_", name).strip("_") or "before"
    return valid if _NAME.fullmatch(valid) else f"run_{valid}"


def _check_is_run(name: str) -> None:
    """Raise UsageError unless a run has this name, or a file. Files are not read here: cells are parsed repeatedly."""
    if name in runs or Path(os.path.expanduser(name)).is_file():  # noqa: PTH111, Path.expanduser raises if there is no such user
        return
    from gpulab.questions.run_names import find_run  # slow to import

    try:
        find_run(name)
    except GpulabError as error:
        raise UsageError(f"--compare {name}: {error}") from None


def _resolve_virtual(options: ProfileOptions) -> ProfileOptions:
    """Check the virtual GPU; with "auto", use none if there is a real GPU. Raises UsageError."""
    if options.level is not None:
        raise UsageError("--virtual cannot be combined with --level: a virtual run has one level only; remove --level")
    if options.virtual == AUTO:
        return ProfileOptions(**{**vars(options), "virtual": None if is_cuda_available() else DEFAULT_GPU})
    try:
        resolve(options.virtual or "")
    except RunError as error:
        raise UsageError(f"--virtual {options.virtual}: {error}") from None
    return options


def split_statement(line: str) -> tuple[str, str]:
    """Split `%gpuprofile [options] statement` into options and code; the code is not changed."""
    value_options = {word for each in _RECORD if "action" not in each.kwds for word in each.args}
    rest, parsed_options = line.lstrip(), ""
    while match := re.match(r"(--?[A-Za-z][\w-]*)(=\S*)?(\s+|$)", rest):
        parsed_options, rest = parsed_options + match[0], rest[match.end() :]
        if match[1] in value_options and not match[2]:
            value = re.match(r"(\"[^\"]*\"|'[^']*'|\S+)(\s+|$)", rest)
            if value:
                parsed_options, rest = parsed_options + value[0], rest[value.end() :]
    return parsed_options.strip(), rest.removeprefix("-- ")


def option_choices(arguments: tuple[argument, ...]) -> dict[str, tuple[str, ...]]:
    """Every long option of a magic, with its choices (empty if any value is allowed)."""
    return {
        word: tuple(each.kwds.get("choices", ())) for each in arguments for word in each.args if word.startswith("--")
    }


def _split(line: str) -> list[str]:
    comment = next((word.start() for word in _WORD.finditer(line) if word[0].startswith("#")), len(line))
    lexer = shlex.shlex(line[:comment], posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    lexer.escape = ""  # a backslash is part of a Windows path, not an escape
    try:
        return list(lexer)
    except ValueError as error:
        raise UsageError(f"{line.strip()}: {error}".replace("No closing", "no closing")) from None


def _checked_save_path(name: str) -> Path:
    path = Path(name).expanduser()
    if path.suffix not in SAVE_SUFFIXES:
        raise UsageError(f"--save {name}: the name must end in .gpulab (the run) or .html (the report)")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--save {name}: the folder {path.absolute().parent} does not exist")
    return path
