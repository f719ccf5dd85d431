"""Find the rank of each run, and order the runs by rank."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpulab.run import Run

_RANK = re.compile(r"(?<![a-z])rank[-_.=]?(\d{1,7})(?!\d)", re.IGNORECASE)
_LAST = re.compile(r"(.*[-_.])(\d{1,7})")
_ENDINGS = (".gpulab", ".gz", ".json", ".sqlite", ".trace", ".pt")


def sort_by_rank(runs_of_files: Mapping[Path, Sequence[Run]], unread: Iterable[Path]) -> tuple[Run, ...]:
    """The runs by rank; those of one rank by start; those without a rank at the end, by name.

    If a trace does not contain its rank, consistent file names decide; `run.facts["rank"]` then says so. They do not
    if a file has several runs.
    """
    single = {path: runs[0] for path, runs in runs_of_files.items() if len(runs) == 1}
    name_ranks = _ranks_from_names(single, unread) if len(single) == len(runs_of_files) else {}
    ranked = [(path, _with_rank(run, name_ranks.get(path))) for path, runs in runs_of_files.items() for run in runs]

    def sort_key(item: tuple[Path, Run]) -> tuple[object, ...]:
        path, run = item
        if run.rank is None:
            return True, 0, False, 0, natural_sort_key(path)
        return False, run.rank, run.began_ns is None, run.began_ns or 0, natural_sort_key(path)

    return tuple(run for _, run in sorted(ranked, key=sort_key))


def natural_sort_key(path: Path) -> tuple[object, ...]:
    """Sort key for natural order: 9 before 10."""
    parts = re.split(r"(\d+)", path.as_posix())
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts))


def rank_in_name(name: str) -> int | None:
    """The rank by a file name such as rank_17.json.gz; None if it has no such number, or several different ones."""
    numbers = {int(digits) for digits in _RANK.findall(name)}
    return numbers.pop() if len(numbers) == 1 else None


def _with_rank(run: Run, rank: int | None) -> Run:
    if run.rank is not None or rank is None:
        return run
    return replace(run, rank=rank, facts={**run.facts, "rank": "from the file's name"})


def _ranks_from_names(runs: Mapping[Path, Run], unread: Iterable[Path]) -> dict[Path, int]:
    """The rank of each file by its name; empty if the names are ambiguous."""
    if all(run.rank is not None for run in runs.values()):
        return {}
    names = _distinct_names([*runs, *unread])
    ranks = _ranks_by_word(names)
    if ranks is None and _overlap(runs.values()):
        ranks = _ranks_by_number(names)
    if ranks is None or any(run.rank not in (None, ranks[path]) for path, run in runs.items()):
        return {}  # the number in the name contradicts a trace, so it is not the rank
    return ranks


def _distinct_names(paths: list[Path]) -> dict[Path, str]:
    """Distinguishing part of each path: below the common folder, without suffixes."""
    folder = os.path.commonpath([path.absolute().parent for path in paths])
    names = {}
    for path in paths:
        name = path.absolute().relative_to(folder).as_posix()
        while name.lower().endswith(_ENDINGS):
            name = name.rpartition(".")[0]
        names[path] = name
    return names


def _ranks_by_word(names: Mapping[Path, str]) -> dict[Path, int] | None:
    """Ranks from rank-0, rank_0 or rank0 in every name; None if they are not distinct."""
    ranks = {path: rank for path, name in names.items() if (rank := rank_in_name(name)) is not None}
    if len(ranks) < len(names):
        return None
    return ranks if len(set(ranks.values())) == len(ranks) else None


def _ranks_by_number(names: Mapping[Path, str]) -> dict[Path, int] | None:
    """Ranks from names that differ only by ..._0, ..._1, ... at the end, without holes; else None."""
    matches = {path: _LAST.fullmatch(name) for path, name in names.items()}
    ends = {path: (match[1], int(match[2])) for path, match in matches.items() if match}
    numbers = sorted(number for _, number in ends.values())
    if len(names) < 2 or len({start for start, _ in ends.values()}) != 1 or numbers != list(range(len(names))):
        return None
    return {path: number for path, (_, number) in ends.items()}


def _overlap(runs: Iterable[Run]) -> bool:
    """Whether all runs overlap in time, as ranks do; numbered windows of one process follow one another."""
    spans = [(run.began_ns, run.began_ns + run.span_ns) for run in runs if run.began_ns is not None]
    return len(spans) == len(list(runs)) and max(start for start, _ in spans) < min(end for _, end in spans)
