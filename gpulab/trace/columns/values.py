"""Columns of JSON values: one value per event, or the distinct values and a code per event."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints
from gpulab.trace.columns.vocabulary import Vocabulary

Mask = NDArray[np.bool_]


class Values(ABC):
    """A JSON value of any type for each event."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of events."""

    @abstractmethod
    def __getitem__(self, index: int) -> Any:
        """The value of an event."""

    @abstractmethod
    def select(self, mask: Mask) -> Values:
        """The values of these events."""

    @abstractmethod
    def codes_in(self, vocabulary: Vocabulary) -> NDArray[np.int32]:
        """Codes of the values in a vocabulary, to which new ones are added in order of their first event."""

    @abstractmethod
    def as_numbers(self) -> Ints:
        """A number for each event, which changes where the value does. Raises what numpy raises if there is none."""


class ListedValues(Values):
    """A list with the value of each event."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> Any:
        return self._values[index]

    def select(self, mask: Mask) -> ListedValues:
        """The values of these events."""
        return ListedValues(select(self._values, mask))

    def codes_in(self, vocabulary: Vocabulary) -> NDArray[np.int32]:
        """Codes of the values in a vocabulary."""
        return vocabulary.codes_of_any(self._values)

    def as_numbers(self) -> Ints:
        """The values themselves. Raises ValueError, TypeError or OverflowError for words and huge numbers."""
        return np.fromiter(self._values, np.int64, len(self._values))


@dataclass(frozen=True, eq=False)
class CodedValues(Values):
    """Distinct values in order of their first event, and their indices; -1, if it occurs, is the index of the last."""

    codes: Ints
    distinct: Sequence[Any]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: int) -> Any:
        return self.distinct[self.codes[index]]

    def select(self, mask: Mask) -> CodedValues:
        """The values of these events."""
        return CodedValues(self.codes[mask], self.distinct).in_order()

    def in_order(self) -> CodedValues:
        """The same values, for codes that are not those of the first events, or distinct values that no event has."""
        present = list(dict.fromkeys(self.codes.tolist()))
        new_codes = np.zeros(len(self.distinct), np.int64)
        new_codes[present] = np.arange(len(present))
        return CodedValues(new_codes[self.codes], [self.distinct[code] for code in present])

    def codes_in(self, vocabulary: Vocabulary) -> NDArray[np.int32]:
        """Codes of the values in a vocabulary."""
        return vocabulary.codes_of_any(self.distinct)[self.codes]

    def as_numbers(self) -> Ints:
        """The codes of the values."""
        return self.codes


def select(values: Sequence[Any], mask: Mask) -> Sequence[Any]:
    """The values where the mask is true."""
    return values if mask.all() else list(compress(values, mask.tolist()))
