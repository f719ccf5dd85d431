"""The description of a stored table: its columns, and how and where the numbers of each are stored."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gpulab.store.packed_arrays import PackedArray

MAGIC = b"gpulab\x00\x02"
HEADER_SIZE_BYTES = 4  # after the magic: the size of the compressed description, little-endian
MAX_HEADER_BYTES = 2**20  # upper limit of the description; ours take 3 kB
MAX_ROWS = 2**31 - 1


class ColumnEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one column is stored. Its streams come in the order of these fields."""

    name: str
    dtype: str  # of gpulab.columns.Column, "words" for text
    mask: PackedArray | None = None  # a bit per row, the lowest first: 0 for rows that are absent and have no number
    distinct: PackedArray | None = None  # the numbers are indices into these
    lengths: PackedArray | None = None  # of text: the bytes of each entry of the vocabulary
    texts: PackedArray | None = None  # of text: the vocabulary in UTF-8, without separators
    numbers: PackedArray | None = None  # integers; the bits of a float; codes of text; always present

    def arrays(self) -> dict[str, PackedArray]:
        """The packed arrays of the column by their field, in the order of their streams."""
        fields = ("mask", "distinct", "lengths", "texts", "numbers")
        arrays = {field: getattr(self, field) for field in fields}
        return {field: array for field, array in arrays.items() if array is not None}


class TableEntry(msgspec.Struct, frozen=True):
    """How a table is stored."""

    rows: Annotated[int, Meta(ge=0, le=MAX_ROWS)]
    columns: tuple[ColumnEntry, ...]
