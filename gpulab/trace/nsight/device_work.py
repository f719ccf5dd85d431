"""Kernels, copies, memsets and graphs of one process, as columns of the events table."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpulab.intervals import Ints
from gpulab.rows import Array
from gpulab.tables import EventKind
from gpulab.trace.columns.categories import EventFamily, kind_of
from gpulab.trace.columns.event_arrays import EventArrays
from gpulab.trace.columns.vocabulary import Vocabulary
from gpulab.trace.nsight.database import COPIES, GRAPHS, KERNELS, MEMSETS, Database, texts_of

GRAPH_NAME = "CUDA graph"
DEVICE_TABLES = (KERNELS, COPIES, MEMSETS, GRAPHS)

# Values of nsys's enumerations; an export since 2021 contains them as tables, too.
_DIRECTIONS = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}
_MIGRATIONS = {11: "HtoD", 12: "DtoH", 13: "DtoD"}  # of unified memory
_MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}


def device_parts(database: Database, condition: Mapping[str, str], names: Vocabulary) -> list[EventArrays]:
    """All device work; `where` selects the rows of each table."""
    parts = (
        _kernels(database, condition[KERNELS], names),
        _copies(database, condition[COPIES], names),
        _memsets(database, condition[MEMSETS], names),
        _graphs(database, condition[GRAPHS], names),
    )
    return [part for part in parts if len(part)]


def _kernels(database: Database, condition: str, names: Vocabulary) -> EventArrays:
    # The demangled name with its template arguments, as Kineto writes it.
    name_column = database.first_column(KERNELS, "demangledName", "shortName", "mangledName")
    grid = database.product_of(KERNELS, "gridX", "gridY", "gridZ")
    block = database.product_of(KERNELS, "blockX", "blockY", "blockZ")
    values = database.integers(
        KERNELS,
        {
            **_common(database, KERNELS),
            "name": database.column(KERNELS, name_column or ""),
            "grid": grid,
            "block": block,
            "registers": database.column(KERNELS, "registersPerThread"),
            "shared_bytes": database.sum_of(KERNELS, "staticSharedMemory", "dynamicSharedMemory"),
        },
        condition,
    )
    ids, index = np.unique(values.pop("name"), return_inverse=True)
    texts = texts_of(database.strings(ids), ids.tolist())
    kinds = np.array([kind_of(EventFamily.KERNEL, text).value for text in texts], np.int8)
    grids = {name: values.pop(name) for name in ("grid", "block", "registers", "shared_bytes")}
    columns = {**_times(values), "kind": kinds[index], "name": names.codes(texts, len(texts))[index]}
    has_grids = any((column >= 0).any() for column in grids.values())
    return EventArrays(columns, grids if has_grids else {})


def _copies(database: Database, condition: str, names: Vocabulary) -> EventArrays:
    expressions = {
        **_common(database, COPIES),
        "bytes": database.column(COPIES, "bytes"),
        "direction": database.column(COPIES, "copyKind"),
        "source": database.column(COPIES, "srcKind"),
        "target": database.column(COPIES, "dstKind"),
    }
    values = database.integers(COPIES, expressions, condition)
    kinds = np.stack([values.pop(name) for name in ("direction", "source", "target")], axis=1)
    triples, index = np.unique(kinds, axis=0, return_inverse=True)
    texts = [_copy_name(*triple) for triple in triples.tolist()]
    return _of_kind(values, names.codes(texts, len(texts))[index.reshape(-1)], EventKind.MEMCPY)


def _copy_name(direction: int, source: int, target: int) -> str:
    """The name that Kineto gives such a copy: "Memcpy HtoD (Pageable -> Device)"."""
    if direction in _MIGRATIONS:
        return f"Unified memory migration {_MIGRATIONS[direction]} (Managed)"
    ends = [_MEMORY.get(kind) for kind in (source, target)]
    memory = f" ({ends[0]} -> {ends[1]})" if all(ends) else ""
    return f"Memcpy {_DIRECTIONS[direction]}{memory}" if direction in _DIRECTIONS else f"Memcpy{memory}"


def _memsets(database: Database, condition: str, names: Vocabulary) -> EventArrays:
    expressions = {
        **_common(database, MEMSETS),
        "bytes": database.column(MEMSETS, "bytes"),
        "memory": database.column(MEMSETS, "memKind"),
    }
    values = database.integers(MEMSETS, expressions, condition)
    kinds, index = np.unique(values.pop("memory"), return_inverse=True)
    texts = [f"Memset ({_MEMORY[kind]})" if kind in _MEMORY else "Memset" for kind in kinds.tolist()]
    return _of_kind(values, names.codes(texts, len(texts))[index], EventKind.MEMSET)


def _graphs(database: Database, condition: str, names: Vocabulary) -> EventArrays:
    """One row for each launch of a graph whose kernels nsys did not record: `--cuda-graph-trace=graph`."""
    values = database.integers(GRAPHS, _common(database, GRAPHS), condition)
    code = names.codes([GRAPH_NAME], 1)[0]
    return _of_kind(values, np.full(len(values["start_ns"]), code), EventKind.KERNEL)


def _common(database: Database, table: str) -> dict[str, str]:
    return {
        "start_ns": database.column(table, "start"),
        "end_ns": database.column(table, "end"),
        "device": database.column(table, "deviceId"),
        "stream": database.column(table, "streamId"),
        "correlation": database.column(table, "correlationId"),
    }


def _of_kind(values: dict[str, Ints], codes: Array, kind: EventKind) -> EventArrays:
    columns = _times(values)
    return EventArrays({**columns, "kind": np.full(len(codes), kind.value, np.int8), "name": codes})


def _times(values: dict[str, Ints]) -> dict[str, Array]:
    """The columns with the duration in place of the end; unknown streams and correlations are absent."""
    columns: dict[str, Array] = dict(values)
    columns["dur_ns"] = columns.pop("end_ns") - columns["start_ns"]
    # CUPTI writes 0 for "no correlation", and all bits for an unknown stream.
    columns["correlation"] = np.where(columns["correlation"] > 0, columns["correlation"], -1)
    columns["stream"] = np.where(columns["stream"] < 2**32 - 1, columns["stream"], -1)
    return columns
