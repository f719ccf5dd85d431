"""Every magic, command and option, from the parsers that read them, and the environment variables."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence

from gpulab.cli.options import parser
from gpulab.magics.commands import GpuProfileMagics
from tools.site.docstrings import fenced
from tools.site.page import Page

FOLDER = "reference"
_HIDDEN = ("help",)


def option_pages() -> Iterator[Page]:
    """Yield the page of the magics and the page of the command line."""
    yield Page(f"{FOLDER}/magics.md", _magics())
    yield Page(f"{FOLDER}/options.md", _commands())


def magic_names() -> Sequence[str]:
    """Return the names of all magics, %%gpuprofile first."""
    kinds = GpuProfileMagics.magics
    return [*kinds["cell"], *(name for name in kinds["line"] if name not in kinds["cell"])]


def command_parsers() -> Sequence[tuple[str, str, argparse.ArgumentParser]]:
    """Return name, help and parser of each command of `gpulab`."""
    (commands,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    helps = {choice.dest: choice.help or "" for choice in commands._choices_actions}
    return [(name, helps.get(name, ""), command) for name, command in commands.choices.items()]


def _magics() -> str:
    parts = [
        "# Magics: all options",
        "`%load_ext gpulab` loads them. Each has `--help`, and completion with the Tab key. [Commands](../commands.md) "
        "has an overview.",
    ]
    for name in magic_names():
        magic = getattr(GpuProfileMagics, name)
        prefix = "%%" if name in GpuProfileMagics.magics["cell"] else "%"
        summary, examples = _magic_text(magic.parser.description or "")
        parts += [f"(magic-{name})=\n## `{prefix}{name}`", summary]
        parts += [fenced(examples)] if examples else []
        parts += _arguments(name, magic.parser)  # "%" would be a format
    return "\n\n".join(parts) + "\n"


def _magic_text(text: str) -> tuple[str, str]:
    """Split the docstring of a magic into its sentences and the lines of examples, which begin with %."""
    lines = [line.strip() for line in text.strip().splitlines()]
    examples = [line for line in lines if line.startswith("%")]
    return "\n".join(line for line in lines if line not in examples), "\n".join(examples)


def _commands() -> str:
    top = parser()
    parts = [
        "# Command line: all options",
        "`gpulab` and `python -m gpulab` are the same program. [Command line](../command_line.md) explains how it runs "
        "scripts and jobs.",
        fenced(re.sub(r"^examples:\n", "", top.epilog or ""), "sh"),
    ]
    for name, help_text, command in command_parsers():
        description = command.description or help_text
        parts += [f"(command-{name})=\n## `gpulab {name}`", _sentence(description), fenced(_usage(name, command), "sh")]
        parts += _arguments(f"gpulab {name}", command)
        if command.epilog:
            parts.append(fenced(command.epilog))
    return "\n\n".join(parts) + "\n"


def _usage(name: str, command: argparse.ArgumentParser) -> str:
    if command.usage:
        return command.usage
    positional = [_metavar(action) for action in command._actions if not action.option_strings]
    return " ".join((f"gpulab {name}", *positional, *(["[options]"] if _options(command) else [])))


def _metavar(action: argparse.Action) -> str:
    word = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    return {"?": f"[{word}]", "*": f"[{word} ...]"}.get(str(action.nargs), word)


def _arguments(program: str, command: argparse.ArgumentParser) -> Iterator[str]:
    positional = [action for action in command._actions if not action.option_strings and action.help]
    if positional:
        rows = (f"| `{_metavar(action)}` | {_cell(action)} |" for action in positional)
        yield "\n".join(("| argument | meaning |", "|---|---|", *rows))
    options = _options(command)
    if not options:
        return
    yield f"```{{program}} {program}\n```"
    for action in options:
        value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
        spellings = ", ".join(f"{word}{value}" for word in action.option_strings)
        yield f"```{{option}} {spellings}\n\n{_text(action)}\n```"


def _options(command: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in command._actions if action.option_strings and action.dest not in _HIDDEN]


def _text(action: argparse.Action) -> str:
    text = _sentence((action.help or "").replace("%%", "%"))
    return f"{text} One of: {', '.join(f'`{choice}`' for choice in action.choices)}." if action.choices else text


def _cell(action: argparse.Action) -> str:
    return _text(action).replace("|", "\\|")


def _sentence(text: str) -> str:
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
