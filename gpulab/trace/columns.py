"""Events -> the columns of the events table, piece by piece in typed arrays; joined and sorted once at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints
from gpulab.tables import EVENTS, Rows, Words
from gpulab.trace.dialect import Family, family_of, kind_of
from gpulab.trace.events import Args, ExactWork, Label, Work
from gpulab.trace.limits import FAR_AWAY, NEGATIVE, NO_TIME, Losses
from gpulab.trace.times import MISSING, by_float, by_text, whole

Part = dict[str, NDArray[Any]]  # the columns of the rows of one piece

_NO_ARGS = Args()
_WEEK_NS = 7 * 86_400 * 10**9
_LONGEST_NAME = 16_384  # of a C++ kernel at its worst; more is no name
_DTYPES = {column.name: np.dtype(column.dtype) for column in EVENTS.columns if column.dtype != "words"}


class Found(NamedTuple):
    """All rows, in order of time, and what the columns need beside them."""

    rows: Rows
    zero_ns: int  # the earliest start, as the trace counts
    span_ns: int
    threads: tuple[str, ...]
    unknown: dict[str, int]  # events of categories gpulab does not know


class _Index(dict[Any, int]):
    """Value -> code, in order of first appearance."""

    def __missing__(self, value: Any) -> int:
        code = self[value] = len(self)
        return code


class Columns:
    """Grows with every piece; keeps nothing of the events but numbers and distinct names."""

    def __init__(self) -> None:
        self._categories, self._names, self._threads = _Index(), _Index(), _Index()
        self._families: list[Family] = []
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in (*_DTYPES, "name", "category")}
        self._labels: dict[tuple[str, str], str] = {}
        self._unknown: Counter[str] = Counter()
        self.count = 0  # rows so far
        self.seen = 0  # events of the kind that have a duration, with a row or without

    def add(self, events: Sequence[Any], *, exact: bool) -> bool:
        """Take the events of a piece; False, and nothing taken, where float64 is too coarse for their times."""
        kind = ExactWork if exact else Work
        work = [event for event in events if type(event) is kind]
        categories = self._codes(self._categories, [event.cat for event in work])
        self._families += [family_of(_text(c)) for c in list(self._categories)[len(self._families) :]]
        families = np.array(self._families, np.int8)[categories]
        kept = families > Family.DROPPED
        picked = work if kept.all() else list(compress(work, kept))
        start, dur = by_float([event.ts for event in picked]), by_float([event.dur for event in picked])
        if start is None or dur is None:
            if not exact:
                return False
            start, dur = by_text([event.ts for event in picked]), by_text([event.dur for event in picked])
        self.seen += len(work)
        self._note(events, work, families)
        self._append(picked, categories[kept], families[kept], start, dur)
        return True

    def _note(self, events: Sequence[Any], work: Sequence[Work], families: NDArray[np.int8]) -> None:
        for label in [event for event in events if type(event) is Label]:
            if label.name == "thread_name" and label.args:
                self._labels[_text(label.pid), _text(label.tid)] = _text(label.args.name).strip()
        for event in compress(work, families == Family.UNKNOWN):
            self._unknown[_text(event.cat)[:100]] += 1

    def _append(
        self,
        work: Sequence[Work],
        categories: NDArray[np.int32],
        families: NDArray[np.int8],
        start: Ints,
        dur: Ints,
    ) -> None:
        count = len(work)
        part: Part = {"start_ns": start, "dur_ns": dur, "category": categories}
        part["name"] = self._codes(self._names, [event.name for event in work])
        for name, dtype in _DTYPES.items():
            if name not in part:
                part[name] = np.full(count, np.nan if dtype.kind == "f" else -1, dtype)
        host = families < Family.SYNC_RECORD
        on_host = work if host.all() else list(compress(work, host))
        part["thread"][host] = self._threads_of(on_host)
        self._fill(part, work, np.flatnonzero(~host | (families == Family.RUNTIME)), ("correlation", "bytes"))
        self._fill(part, work, np.flatnonzero(~host), ("device", "stream"))
        kernels = np.flatnonzero(families == Family.KERNEL)
        self._fill(part, work, kernels, ("grid", "block", "occupancy_frac"))
        for name, values in part.items():
            self._parts[name].append(values)
        self.count += count

    def _fill(self, part: Part, work: Sequence[Work], at: Ints, names: Iterable[str]) -> None:
        """Set these columns in these rows from the arguments of the events."""
        args = [work[index].args or _NO_ARGS for index in at.tolist()]
        for name in names:
            values = _ARGUMENTS[name](args)
            if values.dtype.kind == "i":  # too large for the column: not an index of anything
                values = np.where(values <= np.iinfo(_DTYPES[name]).max, values, -1)
            part[name][at] = values

    def _threads_of(self, work: Sequence[Work]) -> NDArray[np.int32]:
        pids, tids = [event.pid for event in work], [event.tid for event in work]
        try:
            return np.fromiter(map(self._threads.__getitem__, zip(pids, tids, strict=True)), np.int32, len(work))
        except TypeError:  # a list or an object where a number should be
            pairs = zip(map(_text, pids), map(_text, tids), strict=True)
            return np.fromiter(map(self._threads.__getitem__, pairs), np.int32, len(work))

    def _codes(self, index: _Index, values: Sequence[Any]) -> NDArray[np.int32]:
        try:
            return np.fromiter(map(index.__getitem__, values), np.int32, len(values))
        except TypeError:  # a list or an object where a name should be
            return np.fromiter(map(index.__getitem__, map(_text, values)), np.int32, len(values))

    def finish(self, losses: Losses) -> Found:
        """All rows, relative to the earliest; what has no usable time is left out and counted."""
        joined: dict[str, NDArray[Any]] = {}
        for name, parts in self._parts.items():
            joined[name] = np.concatenate(parts) if parts else np.empty(0, np.int64)
            parts.clear()
        kept = _timed(joined["start_ns"], joined["dur_ns"], losses)
        # Parents before children where both start together, as they do in traces of whole µs.
        order = np.lexsort((-joined["dur_ns"], joined["start_ns"]))
        order = order if kept.all() else order[kept[order]]
        for name in joined:
            joined[name] = joined[name][order]
        start, dur = joined["start_ns"], joined["dur_ns"]
        zero = int(start[0]) if len(start) else 0
        threads, codes = self._named_threads()
        columns: dict[str, Any] = {name: joined[name] for name in _DTYPES}
        columns["start_ns"] = start - zero
        columns["thread"] = codes[joined["thread"]]
        columns["kind"] = self._kinds(joined["category"], joined["name"])
        columns["name"] = self._vocabulary(joined["name"])
        span = int((columns["start_ns"] + dur).max()) if len(start) else 0
        return Found(EVENTS.rows(columns), zero, span, threads, dict(self._unknown))

    def _kinds(self, categories: NDArray[Any], names: NDArray[Any]) -> NDArray[np.int8]:
        """One question per distinct pair of family and name, not one per event."""
        vocabulary = [_text(name) for name in self._names]
        families = np.array(self._families, np.int64)[categories] if len(categories) else categories.astype(np.int64)
        pairs = families * max(1, len(vocabulary)) + names
        present = np.flatnonzero(np.bincount(pairs)) if len(pairs) else pairs
        answers: NDArray[np.int8] = np.empty(int(present[-1]) + 1 if len(present) else 0, np.int8)
        for pair in present.tolist():
            family, name = divmod(pair, len(vocabulary))
            answers[pair] = kind_of(Family(family), vocabulary[name])
        return np.asarray(answers[pairs], np.int8)

    def _vocabulary(self, codes: NDArray[Any]) -> Words:
        words = [_printable(_text(name)) for name in self._names]
        if len(set(words)) == len(words):
            return Words(codes.astype(np.int32), tuple(words))
        unique = _Index()
        moved = np.fromiter(map(unique.__getitem__, words), np.int32, len(words))
        return Words(moved[codes], tuple(unique))

    def _named_threads(self) -> tuple[tuple[str, ...], NDArray[np.int32]]:
        """The names of the host threads, and the final code of each found pair (the last: no thread)."""
        unique = _Index()
        codes = [unique[_text(pid), _text(tid)] for pid, tid in self._threads]
        names = [self._labels.get(key) or ("profiler" if key[0] == "-1" else f"thread {key[1]}") for key in unique]
        times = Counter(names)
        told = (f"{n} of process {pid}" if times[n] > 1 else n for n, (pid, _) in zip(names, unique, strict=True))
        return tuple(map(_printable, told)), np.array([*codes, -1], np.int32)


def _timed(start: Ints, dur: Ints, losses: Losses) -> NDArray[np.bool_]:
    """Which rows have a time to be trusted. Changes missing and negative durations to zero."""
    kept: NDArray[np.bool_] = start != MISSING
    losses.add(NO_TIME, int((~kept).sum()))
    unknown = dur == MISSING
    dur[unknown] = 0
    losses.add(NEGATIVE, int((dur < 0).sum()))
    np.maximum(dur, 0, out=dur)
    if kept.any():
        middle = int(np.median(start[kept].astype(np.float64)))
        # One event of the year 1970 would make a run of half a century.
        near = (abs(start - middle) < _WEEK_NS) & (dur < _WEEK_NS)
        losses.add(FAR_AWAY, int((kept & ~near).sum()))
        kept &= near
    return kept


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else str(value)[:_LONGEST_NAME]


def _printable(word: str) -> str:
    """A name of bearable length that can be encoded."""
    if len(word) > _LONGEST_NAME:
        word = word[: _LONGEST_NAME - 1] + "…"
    return word if word.isascii() else word.encode("utf-8", "replace").decode()


def _wholes(name: str) -> Callable[[Sequence[Args]], Ints]:
    def column(args: Sequence[Args]) -> Ints:
        values = [getattr(a, name) for a in args]
        try:
            array = np.array(values)
        except (ValueError, TypeError, OverflowError):
            array = np.empty(0)
        if array.dtype == np.int64 and array.shape == (len(values),) and (array < 2**32 - 1).all():
            return np.asarray(np.maximum(array, -1), np.int64)
        return np.fromiter(map(whole, values), np.int64, len(values))

    return column


def _correlations(args: Sequence[Args]) -> Ints:
    """CUPTI counts from 1; it writes 0 where nothing belongs together."""
    values = _wholes("correlation")(args)
    return np.where(values == 0, -1, values)


def _products(name: str) -> Callable[[Sequence[Args]], Ints]:
    def column(args: Sequence[Args]) -> Ints:
        return np.fromiter((_product(getattr(a, name)) for a in args), np.int64, len(args))

    return column


def _product(sides: Any) -> int:
    """Blocks of a grid, or threads of a block, from its three sides; -1 where it is not told."""
    if not isinstance(sides, list) or not 0 < len(sides) <= 3:
        return -1
    total = 1
    for side in sides:
        if type(side) is not int or not 0 < side < 2**32:
            return -1
        total *= side
    return total if total < 2**62 else -1


def _occupancies(args: Sequence[Args]) -> NDArray[np.float64]:
    return np.fromiter((_occupancy(a.occupancy) for a in args), np.float64, len(args)) / 100


def _occupancy(percent: Any) -> float:
    """Per cent; Kineto writes a negative number, or a word, where it could not tell."""
    good = isinstance(percent, (int, float, Decimal)) and not isinstance(percent, bool) and 0 <= percent <= 100
    return float(percent) if good else float("nan")


_ARGUMENTS: dict[str, Callable[[Sequence[Args]], NDArray[Any]]] = {
    "correlation": _correlations,
    "bytes": _wholes("bytes"),
    "device": _wholes("device"),
    "stream": _wholes("stream"),
    "grid": _products("grid"),
    "block": _products("block"),
    "occupancy_frac": _occupancies,
}
