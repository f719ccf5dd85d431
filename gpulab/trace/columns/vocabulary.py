"""Distinct values, each stored once: names, categories, threads and shapes while a trace is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.rows import TextColumn

MAX_TEXT_LENGTH = 16_384  # characters; the longest names of C++ kernels are shorter


class _Index(dict[Any, int]):
    """Value -> code, in order of first appearance."""

    def __missing__(self, value: Any) -> int:
        code = self[value] = len(self)
        return code


class _IndexOrAbsent(dict[Any, int]):
    """The same, with code -1 for None and for empty JSON."""

    def __missing__(self, value: Any) -> int:
        code = self[value] = len(self) - len(_ABSENT)
        return code


_ABSENT = {None: -1, b"": -1}


class Vocabulary:
    """Values in order of first appearance; the index of a value is its code. With `absent`, None and b"" have none."""

    def __init__(self, *, absent: bool = False) -> None:
        self._index: dict[Any, int] = _IndexOrAbsent(_ABSENT) if absent else _Index()
        self._hidden = len(_ABSENT) if absent else 0

    def __len__(self) -> int:
        return len(self._index) - self._hidden

    def codes(self, values: Iterable[Any], count: int) -> NDArray[np.int32]:
        """Codes of `count` values; new ones are added. Raises TypeError if one is a list or an object."""
        return np.fromiter(map(self._index.__getitem__, values), np.int32, count)

    def codes_of_any(self, values: Sequence[Any]) -> NDArray[np.int32]:
        """Codes of all values; lists and objects are converted to text."""
        try:
            return self.codes(values, len(values))
        except TypeError:
            return self.codes((None if value is None else as_text(value) for value in values), len(values))

    def since(self, count: int) -> list[Any]:
        """The values added after the first `count`."""
        return list(self._index)[count + self._hidden :]

    def texts(self) -> list[str]:
        """Every value as text."""
        return [as_text(value) for value in self.since(0)]

    def text_column(self, codes: NDArray[Any], texts: Iterable[str] | None = None) -> TextColumn:
        """A text column of these codes; equal texts share one code."""
        labels = [encodable_name(text) for text in (self.texts() if texts is None else texts)]
        if len(set(labels)) == len(labels):
            return TextColumn(codes.astype(np.int32), tuple(labels))
        unique = _Index()
        # The extra last entry maps the absent code -1 to itself.
        new_codes = np.array([*(unique[label] for label in labels), -1], np.int32)
        return TextColumn(new_codes[codes], tuple(unique))


def as_text(value: Any) -> str:
    """A value as text; other types are cut to `LONGEST` characters."""
    if isinstance(value, str):
        return value
    return "" if value is None else str(value)[:MAX_TEXT_LENGTH]


def encodable_name(word: str) -> str:
    """A name of at most `LONGEST` characters that can be encoded."""
    if len(word) > MAX_TEXT_LENGTH:
        word = word[: MAX_TEXT_LENGTH - 1] + "…"
    return word if word.isascii() else word.encode("utf-8", "replace").decode()
