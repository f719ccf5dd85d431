"""The user's lines and functions of libraries that the main thread was in, from samples of the loop, traced or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.recorded_spans import pauses_of
from gpulab.analysis.steps.detection import Steps
from gpulab.intervals import covered_ns
from gpulab.run import Run
from gpulab.sensors.host.frames import PATH_SEPARATOR

MIN_SAMPLES = 20  # with fewer, a share says little
_MIN_FRAC = 0.08  # of a function that is named
_MIN_SAMPLES_OF_FUNCTION = 3
_SAME = 1.25  # a function with at most this many times the samples of one that it calls does hardly anything else
_Path = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LibraryFunction:
    """A function of a library, with its share of the samples, including what it calls."""

    name: str  # "Optimizer.step", or "Dataset.__getitem__ -> Image.open" with what it spends its time in
    frac: float  # 0-1


@dataclass(frozen=True, kw_only=True)
class LineTime:
    """A line of the user's code and its share of the samples."""

    line: str  # "cell line 12", "train (train.py:40)"
    call: str | None  # the library function that it was in, in most of the samples
    frac: float  # 0-1
    inside: tuple[LibraryFunction, ...] = ()  # functions of libraries that it spent its time in


@dataclass(frozen=True, kw_only=True)
class SampledLines:
    """The lines, the most frequent first, and the number of samples."""

    lines: tuple[LineTime, ...]
    samples: int


def sampled_lines(run: Run, steps: Steps) -> SampledLines | None:
    """Count the lines in the samples from the first step to the last, while the profiler did not pause the loop.

    None with fewer than 20 samples.
    """
    at_ns = run.host_rows["at_ns"]
    if not len(at_ns) or not len(steps):
        return None
    is_paused = covered_ns(pauses_of(run), at_ns, at_ns + 1) > 0
    in_loop = (at_ns >= steps.start_ns[0]) & (at_ns < steps.end_ns[-1]) & ~is_paused
    rows = run.host_rows.select(np.flatnonzero(in_loop))
    columns = (rows.text(column).to_list() for column in ("frame", "called", "library_path"))
    by_line: dict[str, list[tuple[str | None, str | None]]] = {}
    for line, call, path in zip(*columns, strict=True):
        if line is not None:
            by_line.setdefault(line, []).append((call, path))
    samples = sum(len(pairs) for pairs in by_line.values())
    if samples < MIN_SAMPLES:
        return None
    lines = [_line_time(line, pairs, samples) for line, pairs in by_line.items()]
    return SampledLines(lines=tuple(sorted(lines, key=lambda each: -each.frac)), samples=samples)


def _line_time(line: str, pairs: Sequence[tuple[str | None, str | None]], samples: int) -> LineTime:
    """Return the line from the calls and paths of its samples."""
    calls = Counter(call for call, _ in pairs)
    inside = busiest_functions((path for _, path in pairs), samples)
    return LineTime(line=line, call=calls.most_common(1)[0][0], frac=len(pairs) / samples, inside=inside)


def busiest_functions(paths: Iterable[str | None], samples: int) -> tuple[LibraryFunction, ...]:
    """Return functions with at least 8 % of so many samples, the largest share first. Their shares do not overlap.

    `paths`: values of `library_path`. Of functions that call each other, the innermost one with so large a share
    counts, together with the outermost one that does hardly anything else.
    """
    counts: Counter[_Path] = Counter()
    for text, number in Counter(paths).items():
        for prefix in _prefixes(tuple(text.split(PATH_SEPARATOR)) if text else ()):
            counts[prefix] += number
    least = max(_MIN_SAMPLES_OF_FUNCTION, _MIN_FRAC * samples)
    frequent = {path for path, number in counts.items() if number >= least}
    innermost = frequent - {path[:-1] for path in frequent}
    branches = Counter([prefix for path in innermost for prefix in _prefixes(path)])
    numbers: Counter[str] = Counter()
    for path in innermost:
        outermost = next(
            prefix
            for prefix in _prefixes(path)[len(path) > 1 :]  # the first function is the one that the line calls
            if branches[prefix] == 1 and counts[prefix] <= _SAME * counts[path]
        )
        numbers[_name(outermost[-1], path[-1])] += counts[outermost]
    return tuple(LibraryFunction(name=name, frac=number / samples) for name, number in numbers.most_common())


def _prefixes(path: _Path) -> list[_Path]:
    return [path[:depth] for depth in range(1, len(path) + 1)]


def _name(outermost: str, innermost: str) -> str:
    return outermost if outermost == innermost else f"{outermost} -> {innermost}"
