"""Which rank each run is, and the order that follows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from gpulab.run import Run

_RANK = re.compile(r"(?<![a-z])rank[-_.=]?(\d{1,7})(?!\d)", re.IGNORECASE)
_LAST = re.compile(r"(.*[-_.])(\d{1,7})")
_ENDINGS = (".gpulab", ".gz", ".json", ".trace", ".pt")


def in_order(runs: Mapping[Path, Run], unread: Iterable[Path]) -> tuple[Run, ...]:
    """The runs by rank, those of one rank by start, and those of none at the end by name.

    Where a trace does not tell its rank, the names do if all of them agree; `run.facts["rank"]` then says so.
    """
    named = _from_names(runs, unread)
    ranked = {path: _with_rank(run, named.get(path)) for path, run in runs.items()}

    def place(item: tuple[Path, Run]) -> tuple[object, ...]:
        path, run = item
        if run.rank is None:
            return True, 0, False, 0, by_name(path)
        return False, run.rank, run.began_ns is None, run.began_ns or 0, by_name(path)

    return tuple(run for _, run in sorted(ranked.items(), key=place))


def by_name(path: Path) -> tuple[object, ...]:
    """Sorts names as people do: 9 before 10."""
    return tuple(int(part) if at % 2 else part for at, part in enumerate(re.split(r"(\d+)", path.as_posix())))


def _with_rank(run: Run, rank: int | None) -> Run:
    if run.rank is not None or rank is None:
        return run
    return replace(run, rank=rank, facts={**run.facts, "rank": "from the file's name"})


def _from_names(runs: Mapping[Path, Run], unread: Iterable[Path]) -> dict[Path, int]:
    """The rank of each file by its name; none at all unless the names leave no doubt."""
    if all(run.rank is not None for run in runs.values()):
        return {}
    names = _names([*runs, *unread])
    ranks = _by_word(names)
    if ranks is None and _together(runs.values()):
        ranks = _by_number(names)
    if ranks is None or any(run.rank not in (None, ranks[path]) for path, run in runs.items()):
        return {}  # a name that contradicts a trace says something else than the rank
    return ranks


def _names(paths: list[Path]) -> dict[Path, str]:
    """What tells the files apart: their paths below the folder that they share, without endings."""
    folder = os.path.commonpath([path.absolute().parent for path in paths])
    names = {}
    for path in paths:
        name = path.absolute().relative_to(folder).as_posix()
        while name.lower().endswith(_ENDINGS):
            name = name.rpartition(".")[0]
        names[path] = name
    return names


def _by_word(names: Mapping[Path, str]) -> dict[Path, int] | None:
    """rank-0, rank_0, rank0 in each name, every number another."""
    told = {path: set(_RANK.findall(name)) for path, name in names.items()}
    if any(len(numbers) != 1 for numbers in told.values()):
        return None
    ranks = {path: int(numbers.pop()) for path, numbers in told.items()}
    return ranks if len(set(ranks.values())) == len(ranks) else None


def _by_number(names: Mapping[Path, str]) -> dict[Path, int] | None:
    """The same name with ..._0, ..._1, ... to the last of them at its end."""
    matches = {path: _LAST.fullmatch(name) for path, name in names.items()}
    ends = {path: (match[1], int(match[2])) for path, match in matches.items() if match}
    numbers = sorted(number for _, number in ends.values())
    if len(names) < 2 or len({start for start, _ in ends.values()}) != 1 or numbers != list(range(len(names))):
        return None
    return {path: number for path, (_, number) in ends.items()}


def _together(runs: Iterable[Run]) -> bool:
    """Whether all were recorded at one time, as ranks are; numbered windows of one process come one after another."""
    spans = [(run.began_ns, run.began_ns + run.span_ns) for run in runs if run.began_ns is not None]
    return len(spans) == len(list(runs)) and max(start for start, _ in spans) < min(end for _, end in spans)
