"""What a table is, and what its rows are in memory: one numpy array a column.

Text columns hold a code per row and the words once (`Words`), so that a million kernel names cost four bytes each. In
integer columns -1 means absent, in float columns NaN does: absent is never zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpulab.columns import Column, Display
from gpulab.errors import RunError
from gpulab.intervals import Spans, union

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Words:
    """A text column: `vocabulary[codes[i]]` is row i; code -1 is absent."""

    codes: NDArray[np.int32]
    vocabulary: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str | None:
        code = int(self.codes[row])
        return self.vocabulary[code] if code >= 0 else None

    def where(self, mask: Array) -> Words:
        """The rows a mask or an index picks; the vocabulary is shared."""
        return Words(self.codes[mask], self.vocabulary)

    def matching(self, wanted: Iterable[bool]) -> NDArray[np.bool_]:
        """A mask over rows from one answer per word of the vocabulary (absent rows: False)."""
        answers = np.append(np.fromiter(wanted, bool, len(self.vocabulary)), False)
        return answers[self.codes]

    def to_list(self) -> list[str | None]:
        """Every row as text."""
        words = (*self.vocabulary, None)
        return [words[code] for code in self.codes.tolist()]

    @classmethod
    def of(cls, values: Iterable[str | None]) -> Words:
        """Words from plain text, each distinct word kept once, in order of first appearance."""
        index: dict[str, int] = {}
        codes = [-1 if value is None else index.setdefault(value, len(index)) for value in values]
        return cls(np.array(codes, np.int32), tuple(index))


@dataclass(frozen=True)
class Table:
    """What a table is: its name and its columns, in order."""

    name: str
    columns: tuple[Column, ...]

    def rows(self, columns: Mapping[str, Any]) -> Rows:
        """Check and freeze: exactly these columns, of these dtypes, of one length. Raises RunError naming the fault."""
        wanted = [column.name for column in self.columns]
        if sorted(columns) != sorted(wanted):
            missing, extra = sorted(set(wanted) - set(columns)), sorted(set(columns) - set(wanted))
            raise RunError(
                f"These are not rows of the table {self.name!r}.",
                why=f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(extra) or 'none'}",
                fix="build the rows from gpulab.tables; its columns are listed by Table.describe()",
            )
        filled = {column.name: _conformed(column, columns[column.name]) for column in self.columns}
        if len(lengths := {len(values) for values in filled.values()}) > 1:
            raise RunError(
                f"The columns of {self.name!r} differ in length.",
                why=f"lengths {sorted(lengths)}",
                fix="give every column one value per row",
            )
        return Rows(self, filled)

    def of(self, rows: Sequence[Sequence[Any]]) -> Rows:
        """From one sequence for each row, its values in the order of the columns."""
        columns = zip(*rows, strict=True) if rows else [()] * len(self.columns)
        return self.rows(dict(zip((column.name for column in self.columns), columns, strict=True)))

    def empty(self) -> Rows:
        """No rows."""
        return self.rows({column.name: () for column in self.columns})

    def column(self, name: str) -> Column:
        """The column of this name. Raises KeyError if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def displayed(self, views: Display) -> tuple[Column, ...]:
        """The columns that at least one of these views shows, in order."""
        return tuple(column for column in self.columns if column.display & views)

    def describe(self) -> str:
        """The columns as text: name, dtype, meaning."""
        width = max(len(column.name) for column in self.columns)
        lines = (f"  {column.name:{width}}  {column.dtype:8} {column.meaning}" for column in self.columns)
        return "\n".join((self.name, *lines))


@dataclass(frozen=True, eq=False)
class Rows:
    """The contents of a table: one read-only array (or `Words`) per column."""

    table: Table
    columns: Mapping[str, Array | Words]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __repr__(self) -> str:
        return f"Rows({self.table.name}, {len(self)})"

    def __getitem__(self, column: str) -> Array:
        values = self.columns[column]
        return values.codes if isinstance(values, Words) else values

    def words(self, column: str) -> Words:
        """A text column."""
        values = self.columns[column]
        assert isinstance(values, Words), f"{column} is not text"
        return values

    def matching(self, wanted: Callable[[str], object], column: str = "name") -> NDArray[np.bool_]:
        """A mask over rows: those whose text satisfies this (absent: False); each distinct text is asked once."""
        words = self.words(column)
        return words.matching(bool(wanted(word)) for word in words.vocabulary)

    def where(self, mask: Array) -> Rows:
        """The rows a mask or an index picks."""
        picked = {name: v.where(mask) if isinstance(v, Words) else v[mask] for name, v in self.columns.items()}
        return Rows(self.table, picked)

    def of_kind(self, *kinds: IntEnum) -> Rows:
        """The rows whose `kind` is one of these."""
        kind = self["kind"]
        picked = kind == int(kinds[0])
        for other in kinds[1:]:
            picked |= kind == int(other)
        return self.where(np.flatnonzero(picked))

    def spans(self) -> Spans:
        """When at least one of these events ran."""
        return union(self["start_ns"], self["start_ns"] + self["dur_ns"])

    def shifted(self, by_ns: int, *columns: str) -> Rows:
        """The same rows with `by_ns` added to these time columns."""
        return Rows(self.table, {**self.columns, **{column: self[column] + by_ns for column in columns}})

    def spread(self, column: str, count: int) -> Array:
        """A column of a side table beside all `count` events: absent where the side table has no row."""
        values = self[column]
        beside: Array = np.full(count, absent(values.dtype), values.dtype)
        beside[self["event"]] = values
        return beside

    def _repr_html_(self) -> str:
        # A notebook shows the table as pandas does.
        return str(self.frame()._repr_html_())  # type: ignore[operator]

    def frame(self) -> pd.DataFrame:
        """The table as a pandas DataFrame; text and kinds as categories, numbers not copied."""
        import pandas as pd  # 0.3 s and 100 MB: only for those who ask for a frame

        columns: dict[str, Any] = {}
        for column in self.table.columns:
            values = self.columns[column.name]
            if isinstance(values, Words):
                vocabulary = pd.Index(list(values.vocabulary), dtype=object)
                columns[column.name] = pd.Categorical.from_codes(values.codes, vocabulary)
            elif column.kinds is not None:
                names = [kind.name.lower() for kind in column.kinds]
                columns[column.name] = pd.Categorical.from_codes(values, pd.Index(names))
            else:
                columns[column.name] = values
        return pd.DataFrame(columns, copy=False)


def absent(dtype: np.dtype[Any]) -> Any:
    """What stands for "not told" in a column: NaN, -1, or False."""
    return np.nan if dtype.kind == "f" else dtype.type(0) if dtype.kind == "b" else -1


def concat(table: Table, parts: Sequence[Rows]) -> Rows:
    """The rows of several parts, one after the other; text keeps one vocabulary."""
    if not parts:
        return table.empty()
    joined: dict[str, Any] = {}
    for column in table.columns:
        if column.dtype == "words":
            joined[column.name] = _joined_words([part.words(column.name) for part in parts])
        else:
            joined[column.name] = np.concatenate([part[column.name] for part in parts])
    return table.rows(joined)


def _joined_words(parts: Sequence[Words]) -> Words:
    index: dict[str, int] = {}
    codes = []
    for words in parts:
        # The extra last entry maps the absent code -1 to itself.
        moved = np.array([*(index.setdefault(word, len(index)) for word in words.vocabulary), -1], np.int32)
        codes.append(moved[words.codes])
    return Words(np.concatenate(codes), tuple(index))


def _conformed(column: Column, values: Any) -> Array | Words:
    if column.dtype == "words":
        words = values if isinstance(values, Words) else Words.of(values)
        words.codes.flags.writeable = False
        return words
    array = np.ascontiguousarray(values, np.dtype(column.dtype))
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array
