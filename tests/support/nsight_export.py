"""Write SQLite databases like `nsys export --type sqlite`, from plain rows, in the schemas of two versions.

The schemas are those of the user guides of Nsight Systems 2021.1 and 2024.6, "SQLite schema reference", without columns
that describe neither time nor work.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpulab.run import Run
from gpulab.tables import RUNTIME_KINDS, EventKind

PUSH_POP, START_END, DOMAIN_CREATE, MARK = 59, 60, 75, 34
PAGEABLE, PINNED, DEVICE, MANAGED = 0, 1, 2, 4
HTOD, DTOH, DTOD, PTOP, UNIFIED_HTOD = 1, 2, 8, 10, 11

_TIMES = "start INTEGER NOT NULL, end INTEGER NOT NULL"
_WORK = f"{_TIMES}, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL"
_ENUM = "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT"
_KERNEL = (
    "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,"
    " shortName INTEGER NOT NULL, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL,"
    " gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL,"
    " staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL"
)
_COPY = (
    "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL,"
    " copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER"
)
_MEMSET = (
    "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, value INTEGER NOT NULL,"
    " bytes INTEGER NOT NULL"
)
_GRAPH = (
    "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, graphId INTEGER NOT NULL,"
    " graphExecId INTEGER NOT NULL"
)
_CALL = (
    f"{_TIMES}, eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,"
    " returnValue INTEGER NOT NULL"
)
_NVTX = (
    "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, color INTEGER,"
    " text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER"
)
_STRINGS = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
}
OLD: Mapping[str, str] = {
    **_STRINGS,
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_WORK}, {_KERNEL}",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_WORK}, {_COPY}",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_WORK}, {_MEMSET}",
    "CUPTI_ACTIVITY_KIND_RUNTIME": _CALL,
    "NVTX_EVENTS": _NVTX,
    "TARGET_INFO_CUDA_GPU": (
        "deviceId INTEGER NOT NULL, name TEXT NOT NULL, globalMemorySize INTEGER NOT NULL,"
        " numMultiprocessors INTEGER NOT NULL, computeCapabilityMajor INTEGER NOT NULL,"
        " computeCapabilityMinor INTEGER NOT NULL"
    ),
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
}
NEW: Mapping[str, str] = {
    **_STRINGS,
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_WORK}, greenContextId INTEGER, {_KERNEL}, mangledName INTEGER,"
    " launchType INTEGER, graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_WORK}, greenContextId INTEGER, {_COPY}, graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_WORK}, greenContextId INTEGER, {_MEMSET}, graphNodeId INTEGER, memKind INTEGER",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_WORK}, greenContextId INTEGER, {_GRAPH}",
    "CUPTI_ACTIVITY_KIND_RUNTIME": f"{_CALL}, callchainId INTEGER",
    "NVTX_EVENTS": f"{_NVTX}, uint64Value INTEGER, jsonText TEXT, binaryData TEXT",
    "TARGET_INFO_GPU": (
        "vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, totalMemory INTEGER, smCount INTEGER,"
        " uuid TEXT, computeMajor INTEGER, computeMinor INTEGER"
    ),
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL, uuid TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_SYSTEM_ENV": (
        "globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL, nameEnum INTEGER NOT NULL,"
        " value TEXT NOT NULL"
    ),
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "ENUM_CUDA_MEMCPY_OPER": _ENUM,
    "ENUM_CUDA_MEM_KIND": _ENUM,
}
_COLUMN = re.compile(r"(\w+) (?:INTEGER|TEXT)")
_HOST = 0x0101 << 48  # the bits of the host and the virtual machine


def global_id(pid: int, tid: int = 0) -> int:
    """A serialised id of a process or a thread."""
    return _HOST | pid << 24 | tid


@dataclass
class NsightExport:
    """An export in the making: rows by table. Strings become string ids."""

    schema: Mapping[str, str] = field(default_factory=lambda: NEW)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    strings: dict[str, int] = field(default_factory=dict)

    def add(self, table: str, **values: Any) -> None:
        """Add a row; columns that this version does not have are left out, others are 0 or NULL."""
        self.rows.setdefault(table, []).append(values)

    def string(self, text: str) -> int:
        """The id of a string."""
        return self.strings.setdefault(text, len(self.strings) + 1)

    def kernel(self, name: str, start: int, end: int, *, pid: int = 1, device: int = 0, **values: Any) -> None:
        """Add a kernel."""
        identity = self.string(name)
        defaults = {"streamId": 7, "gridX": 1, "gridY": 1, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1}
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            start=start,
            end=end,
            globalPid=global_id(pid),
            demangledName=identity,
            shortName=self.string(name.split("<")[0]),
            **{**defaults, "deviceId": device, **values},
        )

    def call(self, name: str, start: int, end: int, correlation: int, *, pid: int = 1, tid: int = 1) -> None:
        """Add a call of the CUDA runtime."""
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            **{"start": start, "end": end, "globalTid": global_id(pid, tid), "correlationId": correlation},
            nameId=self.string(name),
        )

    def range(self, text: str, start: int, end: int | None, *, pid: int = 1, tid: int = 1, **values: Any) -> None:
        """Add an NVTX range with its own text; `registered=True` stores the text as a string id."""
        label = {"textId": self.string(text)} if values.pop("registered", False) else {"text": text}
        defaults = {"eventType": PUSH_POP, "globalTid": global_id(pid, tid), "domainId": 0}
        self.add("NVTX_EVENTS", start=start, end=end, **{**defaults, **label, **values})

    def write(self, path: Path) -> Path:
        """Write the database: like nsys, tables without rows are left out."""
        with contextlib.closing(sqlite3.connect(path)) as connection:
            rows = {"StringIds": [{"id": number, "value": text} for text, number in self.strings.items()], **self.rows}
            for table, values in rows.items():
                if table in self.schema:
                    _write_table(connection, table, self.schema[table], values)
            connection.commit()
        return path


def _write_table(connection: sqlite3.Connection, table: str, schema: str, rows: Iterable[dict[str, Any]]) -> None:
    connection.execute(f"CREATE TABLE {table} ({schema})")
    columns = _COLUMN.findall(schema)
    required = {
        name: "" if kind == "TEXT" else 0 for name, kind in re.findall(r"(\w+) (INTEGER|TEXT) NOT NULL", schema)
    }
    values = [tuple(row.get(name, required.get(name)) for name in columns) for row in rows]
    connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", values)


_MEMORY = {"Pageable": PAGEABLE, "Pinned": PINNED, "Device": DEVICE, "Managed": MANAGED}
_DIRECTION = {"HtoD": HTOD, "DtoH": DTOH, "DtoD": DTOD, "PtoP": PTOP}


def export_of(run: Run, schema: Mapping[str, str], *, pid: int = 4321) -> NsightExport:
    """What nsys would have recorded of a run that PyTorch's profiler recorded, with `emit_nvtx` around the loop."""
    export = NsightExport(schema)
    grids = dict(zip(run.grid_rows["event"].tolist(), range(len(run.grid_rows)), strict=True))
    columns = {name: run.event_rows[name].tolist() for name in ("kind", "start_ns", "dur_ns", "thread", "device")}
    columns |= {name: run.event_rows[name].tolist() for name in ("stream", "correlation", "bytes")}
    for row, name in enumerate(run.event_rows.text("name").to_list()):
        event = {key: values[row] for key, values in columns.items()}
        start, end = event["start_ns"] + 1000, event["start_ns"] + 1000 + event["dur_ns"]
        kind, thread = EventKind(event["kind"]), 100 + event["thread"]
        work = {"correlationId": event["correlation"], "streamId": event["stream"], "deviceId": event["device"]}
        common = {"start": start, "end": end, "globalPid": global_id(pid), **work}
        if kind in (EventKind.KERNEL, EventKind.COLLECTIVE):
            grid = {key: int(run.grid_rows[key][grids[row]]) for key in ("grid", "block", "registers", "shared_bytes")}
            launch = {"gridX": grid["grid"], "blockX": grid["block"], "registersPerThread": grid["registers"]}
            export.kernel(name, start, end, pid=pid, **work, **launch, dynamicSharedMemory=grid["shared_bytes"])
        elif kind is EventKind.MEMCPY:
            ends = [_MEMORY[word] for word in re.findall(r"Pageable|Pinned|Device|Managed", name)]
            copy = {"copyKind": _DIRECTION[re.search(r"\w+to\w+", name)[0]], "bytes": event["bytes"]}
            export.add("CUPTI_ACTIVITY_KIND_MEMCPY", **common, **copy, srcKind=ends[0], dstKind=ends[1])
        elif kind is EventKind.MEMSET:
            export.add("CUPTI_ACTIVITY_KIND_MEMSET", **common, bytes=event["bytes"], memKind=DEVICE)
        elif kind in RUNTIME_KINDS:
            export.call(f"{name}_v7000", start, end, event["correlation"], pid=pid, tid=thread)
        elif kind is EventKind.OP:
            export.range(f"{name}, seq = {row}, op_id = {row}", start, end, pid=pid, tid=thread)
        elif kind in (EventKind.ANNOTATION, EventKind.STEP, EventKind.LOADER):
            export.range(name, start, end, pid=pid, tid=thread, registered=row % 2 == 0)
    for gpu in run.machine.gpus:
        capability = dict(zip(("Major", "Minor"), map(int, (gpu.compute_capability or "0.0").split(".")), strict=True))
        new = {f"compute{part}": number for part, number in capability.items()}
        old = {f"computeCapability{part}": number for part, number in capability.items()}
        export.add("TARGET_INFO_GPU", id=gpu.index, name=gpu.name, smCount=gpu.multiprocessors, **new)
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu.index, cudaId=gpu.index, pid=pid)
        size = {"globalMemorySize": gpu.memory_bytes or 0, "numMultiprocessors": gpu.multiprocessors or 0}
        export.add("TARGET_INFO_CUDA_GPU", deviceId=gpu.index, name=gpu.name, **size, **old)
        export.rows["TARGET_INFO_GPU"][-1]["totalMemory"] = gpu.memory_bytes
    return export
