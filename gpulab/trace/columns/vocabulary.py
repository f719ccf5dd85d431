"""Distinct values, each kept once: what names, categories, threads and shapes are while a trace is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.rows import Words

LONGEST = 16_384  # letters of a C++ kernel's name at its worst; more is no name


class _Index(dict[Any, int]):
    """Value -> code, in order of first appearance."""

    def __missing__(self, value: Any) -> int:
        code = self[value] = len(self)
        return code


class _IndexOrAbsent(dict[Any, int]):
    """The same, where None has the code -1."""

    def __missing__(self, value: Any) -> int:
        code = self[value] = len(self) - 1
        return code


class Vocabulary:
    """Values in order of first appearance; a value's place is its code. With `absent`, None is no value."""

    def __init__(self, *, absent: bool = False) -> None:
        self._index: dict[Any, int] = _IndexOrAbsent({None: -1}) if absent else _Index()
        self._hidden = int(absent)

    def __len__(self) -> int:
        return len(self._index) - self._hidden

    def codes(self, values: Iterable[Any], count: int) -> NDArray[np.int32]:
        """The code of each of so many values; new ones are added. Raises TypeError where one is a list or an object."""
        return np.fromiter(map(self._index.__getitem__, values), np.int32, count)

    def codes_of_any(self, values: Sequence[Any], get: Callable[[Any], Any] | None = None) -> NDArray[np.int32]:
        """The same of all values, or of what `get` gives for each, with lists and objects taken as text."""
        found = values if get is None else map(get, values)
        try:
            return self.codes(found, len(values))
        except TypeError:
            found = values if get is None else map(get, values)
            return self.codes((None if value is None else plain(value) for value in found), len(values))

    def since(self, count: int) -> list[Any]:
        """The values added after the first `count`."""
        return list(self._index)[count + self._hidden :]

    def texts(self) -> list[str]:
        """Every value as text."""
        return [plain(value) for value in self.since(0)]

    def words(self, codes: NDArray[Any], texts: Iterable[str] | None = None) -> Words:
        """A text column of these codes; what reads alike becomes one word."""
        words = [printable(text) for text in (self.texts() if texts is None else texts)]
        if len(set(words)) == len(words):
            return Words(codes.astype(np.int32), tuple(words))
        unique = _Index()
        # The extra last entry maps the absent code -1 to itself.
        moved = np.array([*(unique[word] for word in words), -1], np.int32)
        return Words(moved[codes], tuple(unique))


def plain(value: Any) -> str:
    """A value as text, of bearable length where it was none."""
    if isinstance(value, str):
        return value
    return "" if value is None else str(value)[:LONGEST]


def printable(word: str) -> str:
    """A name of bearable length that can be encoded."""
    if len(word) > LONGEST:
        word = word[: LONGEST - 1] + "…"
    return word if word.isascii() else word.encode("utf-8", "replace").decode()
