"""Tables and their rows in memory: one numpy array per column.

Text columns hold an integer code per row and each distinct text once (`TextColumn`), so a million kernel names take
four bytes each. A missing value is -1 in integer columns and NaN in float columns, never zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpulab.columns import Column, Display
from gpulab.errors import RunError
from gpulab.extras import install_command, is_installed, require_extra
from gpulab.intervals import Spans, union
from gpulab.wording import clean, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class TextColumn:
    """A text column: `vocabulary[codes[i]]` is the text of row i; code -1 means absent."""

    codes: NDArray[np.int32]
    vocabulary: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str | None:
        code = int(self.codes[row])
        return self.vocabulary[code] if code >= 0 else None

    def select(self, mask: Array) -> TextColumn:
        """Return the rows selected by a mask or an index; the vocabulary is shared."""
        return TextColumn(self.codes[mask], self.vocabulary)

    def matching(self, matches: Iterable[bool]) -> NDArray[np.bool_]:
        """Return a mask over rows from one boolean per entry of the vocabulary (absent rows: False)."""
        by_code = np.append(np.fromiter(matches, bool, len(self.vocabulary)), False)
        return by_code[self.codes]

    def to_list(self) -> list[str | None]:
        """Return the text of every row; None if absent."""
        texts = (*self.vocabulary, None)
        return [texts[code] for code in self.codes.tolist()]

    def without_absent(self) -> TextColumn:
        """Return the column with "" in place of absent texts."""
        if not len(self) or self.codes.min() >= 0:
            return self
        vocabulary = self.vocabulary if "" in self.vocabulary else (*self.vocabulary, "")
        return TextColumn(np.where(self.codes < 0, vocabulary.index(""), self.codes).astype(np.int32), vocabulary)

    def printable(self) -> TextColumn:
        """Return the column with control characters and characters that reorder text escaped."""
        texts = [text if text.isprintable() else clean(text, len(text)) for text in self.vocabulary]
        if texts == list(self.vocabulary) and len(set(texts)) == len(texts):
            return self
        index: dict[str, int] = {}
        codes = np.array([*(index.setdefault(text, len(index)) for text in texts), -1], np.int32)
        return TextColumn(codes[self.codes], tuple(index))

    @classmethod
    def of(cls, values: Iterable[str | None]) -> TextColumn:
        """Build a text column from strings; the vocabulary is in order of first appearance."""
        index: dict[str, int] = {}
        codes = [-1 if value is None else index.setdefault(value, len(index)) for value in values]
        return cls(np.array(codes, np.int32), tuple(index))


@dataclass(frozen=True)
class Table:
    """The definition of a table: its name and its columns, in order."""

    name: str
    columns: tuple[Column, ...]

    def rows(self, columns: Mapping[str, Any]) -> Rows:
        """Build read-only rows from columns. Raises RunError if a column is missing or unknown, or lengths differ."""
        expected = [column.name for column in self.columns]
        if sorted(columns) != sorted(expected):
            missing, extra = sorted(set(expected) - set(columns)), sorted(set(columns) - set(expected))
            raise RunError(
                f"The columns do not match the table {self.name!r}.",
                why=f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(extra) or 'none'}",
                fix="pass exactly the columns that Table.describe() lists",
            )
        arrays = {column.name: _convert(column, columns[column.name]) for column in self.columns}
        if len(lengths := {len(values) for values in arrays.values()}) > 1:
            raise RunError(
                f"The columns of {self.name!r} differ in length.",
                why=f"lengths {sorted(lengths)}",
                fix="pass columns of equal length, with one value per row",
            )
        return Rows(self, arrays)

    def of(self, rows: Sequence[Sequence[Any]]) -> Rows:
        """Build rows from one sequence per row, with its values in the order of the columns."""
        columns = zip(*rows, strict=True) if rows else [()] * len(self.columns)
        return self.rows(dict(zip((column.name for column in self.columns), columns, strict=True)))

    def empty(self) -> Rows:
        """Return rows of length zero."""
        return self.rows({column.name: () for column in self.columns})

    def column(self, name: str) -> Column:
        """Return the column of this name. Raises KeyError if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def displayed(self, views: Display) -> tuple[Column, ...]:
        """Return the columns that at least one of these views shows, in order."""
        return tuple(column for column in self.columns if column.display & views)

    def describe(self) -> str:
        """Describe the columns as text: name, dtype, meaning."""
        width = max(len(column.name) for column in self.columns)
        lines = (f"  {column.name:{width}}  {column.dtype:8} {column.meaning}" for column in self.columns)
        return "\n".join((self.name, *lines))


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a table: one read-only array (or `TextColumn`) per column."""

    table: Table
    columns: Mapping[str, Array | TextColumn]

    def __len__(self) -> int:
        if isinstance(self.columns, _SelectedColumns):
            return len(self.columns.index)
        return len(next(iter(self.columns.values())))

    def __repr__(self) -> str:
        return f"Rows({self.table.name}, {len(self)})"

    def __getitem__(self, column: str) -> Array:
        values = self._column(column)
        return values.codes if isinstance(values, TextColumn) else values

    def text(self, column: str) -> TextColumn:
        """Return a text column."""
        values = self._column(column)
        assert isinstance(values, TextColumn), f"{column} is not text"
        return values

    def _column(self, name: str) -> Array | TextColumn:
        try:
            return self.columns[name]
        except KeyError:
            hint = did_you_mean(name, self.columns) or f"the columns are {', '.join(self.columns)}"
            raise KeyError(f"the table {self.table.name} has no column {name!r}; {hint}") from None

    def matching(self, predicate: Callable[[str], object], column: str = "name") -> NDArray[np.bool_]:
        """Return a mask of the rows whose text satisfies the predicate, called once per distinct text."""
        texts = self.text(column)
        return texts.matching(map(bool, map(predicate, texts.vocabulary)))

    def select(self, mask: Array) -> Rows:
        """Return the rows selected by a mask or an index. Each column is gathered when it is first read.

        Raises IndexError for a mask of another length.
        """
        return Rows(self.table, _SelectedColumns(self.columns, _index_of(mask, len(self))))

    def is_kind(self, *kinds: IntEnum) -> NDArray[np.bool_]:
        """Return a mask of the rows whose `kind` is one of these.

        Arrays are compared with plain numbers only: while NumPy looks at a member of an enumeration, it drops what a
        signal handler raises (Python 3.11).
        """
        kind = self["kind"]
        mask: NDArray[np.bool_] = kind == kinds[0].value
        for other in kinds[1:]:
            mask |= kind == other.value
        return mask

    def of_kind(self, *kinds: IntEnum) -> Rows:
        """Return the rows whose `kind` is one of these."""
        return self.select(np.flatnonzero(self.is_kind(*kinds)))

    def spans(self) -> Spans:
        """Return the time in which at least one of these events ran."""
        return union(self["start_ns"], self["start_ns"] + self["dur_ns"])

    def shifted(self, by_ns: int, *columns: str) -> Rows:
        """Return the rows with `by_ns` added to these time columns."""
        return Rows(self.table, {**self.columns, **{column: self[column] + by_ns for column in columns}})

    def per_event(self, column: str, count: int) -> Array:
        """Return a column of a side table with a value for each of `count` events: absent for events without a row."""
        values = self[column]
        per_event: Array = np.full(count, absent_value(values.dtype), values.dtype)
        per_event[self["event"]] = values
        return per_event

    def _repr_html_(self) -> str:
        # Notebooks show the table as a pandas DataFrame.
        if not is_installed("pandas"):
            text = f"{self!r}: shown as a table if pandas is installed: {install_command('frames')}"
            return f"<pre>{escape(text)}</pre>"
        return str(self.frame()._repr_html_())  # type: ignore[operator]

    def frame(self) -> pd.DataFrame:
        """Return the table as a pandas DataFrame: text and kinds as categories, numbers without a copy.

        A text that would control the terminal is escaped, because pandas prints it as it is. Raises GpulabError if
        pandas is not installed.
        """
        require_extra("frames", "pandas", problem=f"The table {self.table.name} cannot be shown as a DataFrame.")
        import pandas as pd  # takes 0.3 s and 100 MB: imported only when a DataFrame is needed

        columns: dict[str, Any] = {}
        for column in self.table.columns:
            values = self.columns[column.name]
            if isinstance(values, TextColumn):
                texts = values.printable()
                vocabulary = pd.Index(list(texts.vocabulary), dtype=object)
                columns[column.name] = pd.Categorical.from_codes(texts.codes, vocabulary)
            elif column.kinds is not None:
                names = [kind.name.lower() for kind in column.kinds]
                columns[column.name] = pd.Categorical.from_codes(values, pd.Index(names))
            else:
                columns[column.name] = values
        return pd.DataFrame(columns, copy=False)


class _SelectedColumns(Mapping[str, Array | TextColumn]):
    """Some rows of columns: most analyses read two or three columns of the rows that they select."""

    def __init__(self, source: Mapping[str, Array | TextColumn], index: Array) -> None:
        self._source, self.index = source, index
        self._gathered: dict[str, Array | TextColumn] = {}

    def __getitem__(self, name: str) -> Array | TextColumn:
        if name not in self._gathered:
            values = self._source[name]
            self._gathered[name] = values.select(self.index) if isinstance(values, TextColumn) else values[self.index]
        return self._gathered[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._source)

    def __len__(self) -> int:
        return len(self._source)

    def __reduce__(self) -> tuple[Any, ...]:  # a copy in another process has these rows only
        return dict, (dict(self),)


def _index_of(mask: Array, count: int) -> Array:
    """Return the rows of a mask or an index, as an array of its own: the caller may change the mask later."""
    values = np.asarray(mask)
    if values.dtype == bool:
        if len(values) != count:
            raise IndexError(f"a mask of {len(values)} rows cannot select from {count}")
        return np.flatnonzero(values)
    return values.astype(np.intp)


def absent_value(dtype: np.dtype[Any]) -> Any:
    """Return the value that means "unknown" in a column of this dtype: NaN, -1, or False."""
    return np.nan if dtype.kind == "f" else dtype.type(0) if dtype.kind == "b" else -1


def concat(table: Table, parts: Sequence[Rows]) -> Rows:
    """Concatenate rows of the same table; text columns share one vocabulary."""
    if not parts:
        return table.empty()
    columns: dict[str, Any] = {}
    for column in table.columns:
        if column.dtype == "words":
            columns[column.name] = _concat_words([part.text(column.name) for part in parts])
        else:
            columns[column.name] = np.concatenate([part[column.name] for part in parts])
    return table.rows(columns)


def _concat_words(parts: Sequence[TextColumn]) -> TextColumn:
    index: dict[str, int] = {}
    codes = []
    for part in parts:
        # The additional last entry maps the absent code -1 to itself.
        new_codes = np.array([*(index.setdefault(text, len(index)) for text in part.vocabulary), -1], np.int32)
        codes.append(new_codes[part.codes])
    return TextColumn(np.concatenate(codes), tuple(index))


def _convert(column: Column, values: Any) -> Array | TextColumn:
    if column.dtype == "words":
        texts = values if isinstance(values, TextColumn) else TextColumn.of(values)
        texts = texts.without_absent() if column.required else texts
        texts.codes.flags.writeable = False
        return texts
    array = np.ascontiguousarray(column.plausible(np.asarray(values, np.dtype(column.dtype))))
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array
