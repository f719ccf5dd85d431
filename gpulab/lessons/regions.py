"""Blanks in a cell, which the learner fills in, each with the code that is there before.

    # <blank> load with two workers
    # was: loader = DataLoader(dataset, batch_size=8)
    loader = DataLoader(dataset, batch_size=8, num_workers=2)
    # </blank>

`# was:` lines are code; several of them keep their indentation. Each cell gives two versions: the solution (the cell
without the marks) and the starter (each blank contains its task and the old code). In a starter that was only run, each
claim must fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gpulab.errors import GpulabError

_OPEN = re.compile(r"^(\s*)# <blank>[ \t]*(.*)$")
_CLOSE = re.compile(r"^\s*# </blank>\s*$")
_WAS = re.compile(r"^\s*# was:[ ]?(.*)$")

Render = Callable[[str, str, list[str], list[str]], list[str]]  # indent, task, old, new -> lines


def solution(source: str) -> str:
    """Return the cell without the marks."""
    return _render(source, lambda indent, task, old, new: new)


def starter(source: str) -> str:
    """Return the cell as a learner gets it: with the old code and the task in each blank."""
    return _render(source, lambda indent, task, old, new: [f"{indent}# your turn: {task}", *old])


def tasks(source: str) -> tuple[str, ...]:
    """Return the tasks of the blanks of a cell, in order. Raises GpulabError if the marks do not match."""
    texts: list[str] = []

    def collect_task(indent: str, task: str, old: list[str], new: list[str]) -> list[str]:
        texts.append(task)
        return new

    _render(source, collect_task)
    return tuple(texts)


def _render(source: str, render_region: Render) -> str:
    lines: list[str] = []
    region: tuple[str, str] | None = None  # indent, task
    old: list[str] = []
    new: list[str] = []
    for line in source.split("\n"):
        if start := _OPEN.match(line):
            if region is not None:
                raise _mark_error(line, "a blank starts inside another one")
            region, old, new = (start[1], start[2].strip()), [], []
        elif _CLOSE.match(line):
            if region is None:
                raise _mark_error(line, "this mark ends a blank that has no start")
            indent, task = region
            lines += render_region(indent, task, [indent + code if code else "" for code in old], new)
            region = None
        elif region is not None and (was := _WAS.match(line)):
            old.append(was[1])
        elif region is not None:
            new.append(line)
        else:
            lines.append(line)
    if region is not None:
        raise _mark_error("# <blank>", "this blank has no end")
    return "\n".join(lines)


def _mark_error(line: str, why: str) -> GpulabError:
    return GpulabError(
        f"The marks of a cell do not match at {line.strip()!r}.",
        why=why,
        fix="write # <blank> task ... # </blank>, and do not nest blanks",
    )
