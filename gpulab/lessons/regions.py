"""Regions of a cell: a fix, or a blank for the learner to fill, each with the code that stood there before.

    # <fix>
    # was: loader = DataLoader(dataset, batch_size=8)
    loader = DataLoader(dataset, batch_size=8, num_workers=2)
    # </fix>

A `# <blank> what to write` is the same, left to the learner. `# was:` lines are code; several of them keep their
indentation. From one text come: the solution (as it stands, without the marks), the starter (blanks as they were), and
the sabotaged notebook (fixes and blanks as they were), in which every claim must fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gpulab.errors import GpulabError

_OPEN = re.compile(r"^(\s*)# <(fix|blank)>[ \t]*(.*)$")
_CLOSE = re.compile(r"^\s*# </(fix|blank)>\s*$")
_WAS = re.compile(r"^\s*# was:[ ]?(.*)$")

Render = Callable[[str, str, str, list[str], list[str]], list[str]]  # kind, indent, told, was, now -> lines


def solution(source: str) -> str:
    """The cell as it stands, without the marks."""
    return _rendered(source, lambda kind, indent, told, was, now: now)


def starter(source: str) -> str:
    """The cell as a learner finds it: fixes applied, blanks as they were before, with what is to be written."""

    def rendered(kind: str, indent: str, told: str, was: list[str], now: list[str]) -> list[str]:
        return now if kind == "fix" else [f"{indent}# your turn: {told}", *was]

    return _rendered(source, rendered)


def sabotaged(source: str) -> str:
    """The cell with every fix and blank as it was before."""
    return _rendered(source, lambda kind, indent, told, was, now: was)


def marked(source: str) -> tuple[str, ...]:
    """The kinds of the regions of a cell, in order. Raises GpulabError where a mark is left open."""
    kinds: list[str] = []

    def noted(kind: str, indent: str, told: str, was: list[str], now: list[str]) -> list[str]:
        kinds.append(kind)
        return now

    _rendered(source, noted)
    return tuple(kinds)


def _rendered(source: str, render: Render) -> str:
    lines: list[str] = []
    inside: tuple[str, str, str] | None = None
    was: list[str] = []
    now: list[str] = []
    for line in source.split("\n"):
        if opened := _OPEN.match(line):
            if inside is not None:
                raise _broken(line, "a region begins inside another")
            inside, was, now = (opened[2], opened[1], opened[3].strip()), [], []
        elif closed := _CLOSE.match(line):
            if inside is None or inside[0] != closed[1]:
                raise _broken(line, "this ends a region that did not begin")
            kind, indent, told = inside
            lines += render(kind, indent, told, [indent + each if each else "" for each in was], now)
            inside = None
        elif inside is not None and (old := _WAS.match(line)):
            was.append(old[1])
        elif inside is not None:
            now.append(line)
        else:
            lines.append(line)
    if inside is not None:
        raise _broken(f"# <{inside[0]}>", "this region does not end")
    return "\n".join(lines)


def _broken(line: str, why: str) -> GpulabError:
    return GpulabError(
        f"The marks of a cell cannot be read at {line.strip()!r}.",
        why=why,
        fix="write # <fix> ... # </fix>, not nested",
    )
