"""Regions of a cell: a fix, or a blank for the learner to fill in, each with the code that it replaced.

    # <fix>
    # was: loader = DataLoader(dataset, batch_size=8)
    loader = DataLoader(dataset, batch_size=8, num_workers=2)
    # </fix>

`# <blank> what to write` marks a region that the learner writes. `# was:` lines are code; several of them keep their
indentation. Each cell gives three versions: the solution (the cell without the marks), the starter (blanks contain the
old code), and the sabotaged cell (fixes and blanks contain the old code), in which every claim must fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gpulab.errors import GpulabError

_OPEN = re.compile(r"^(\s*)# <(fix|blank)>[ \t]*(.*)$")
_CLOSE = re.compile(r"^\s*# </(fix|blank)>\s*$")
_WAS = re.compile(r"^\s*# was:[ ]?(.*)$")

Render = Callable[[str, str, str, list[str], list[str]], list[str]]  # kind, indent, task, old, new -> lines


def solution(source: str) -> str:
    """Return the cell without the marks."""
    return _render(source, lambda kind, indent, task, old, new: new)


def starter(source: str) -> str:
    """Return the cell as a learner gets it: with the fixes, and with the old code and the task in each blank."""

    def render_region(kind: str, indent: str, task: str, old: list[str], new: list[str]) -> list[str]:
        return new if kind == "fix" else [f"{indent}# your turn: {task}", *old]

    return _render(source, render_region)


def sabotaged(source: str) -> str:
    """Return the cell with the old code in every fix and blank."""
    return _render(source, lambda kind, indent, task, old, new: old)


def region_kinds(source: str) -> tuple[str, ...]:
    """Return the kinds of the regions of a cell, in order. Raises GpulabError if the marks do not match."""
    kinds: list[str] = []

    def collect_kind(kind: str, indent: str, task: str, old: list[str], new: list[str]) -> list[str]:
        kinds.append(kind)
        return new

    _render(source, collect_kind)
    return tuple(kinds)


def _render(source: str, render_region: Render) -> str:
    lines: list[str] = []
    region: tuple[str, str, str] | None = None  # kind, indent, task
    old: list[str] = []
    new: list[str] = []
    for line in source.split("\n"):
        if start := _OPEN.match(line):
            if region is not None:
                raise _mark_error(line, "a region starts inside another one")
            region, old, new = (start[2], start[1], start[3].strip()), [], []
        elif end := _CLOSE.match(line):
            if region is None or region[0] != end[1]:
                raise _mark_error(line, "this mark ends a region that has no start")
            kind, indent, task = region
            lines += render_region(kind, indent, task, [indent + code if code else "" for code in old], new)
            region = None
        elif region is not None and (was := _WAS.match(line)):
            old.append(was[1])
        elif region is not None:
            new.append(line)
        else:
            lines.append(line)
    if region is not None:
        raise _mark_error(f"# <{region[0]}>", "this region has no end")
    return "\n".join(lines)


def _mark_error(line: str, why: str) -> GpulabError:
    return GpulabError(
        f"The marks of a cell do not match at {line.strip()!r}.",
        why=why,
        fix="write # <fix> ... # </fix>, and do not nest regions",
    )
