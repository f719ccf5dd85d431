"""The GPUs, date and host of an export, in the terms of Kineto's metadata."""

from __future__ import annotations

import re
from typing import Any

from gpulab.trace.nsight.database import Database
from gpulab.trace.nsight.global_ids import process_id
from gpulab.trace.reading.chunk_events import NO_HEADER, Header

_GPUS = "TARGET_INFO_GPU"
_OLD_GPUS = "TARGET_INFO_CUDA_GPU"  # until early 2021
_DEVICES = "TARGET_INFO_CUDA_DEVICE"
_START = "TARGET_INFO_SESSION_START_TIME"
_ENVIRONMENT = "TARGET_INFO_SYSTEM_ENV"
_NEW_TO_KINETO = {
    "name": "name",
    "totalMemory": "totalGlobalMem",
    "smCount": "numSms",
    "computeMajor": "computeMajor",
    "computeMinor": "computeMinor",
}
_OLD_TO_KINETO = {
    "name": "name",
    "globalMemorySize": "totalGlobalMem",
    "numMultiprocessors": "numSms",
    "computeCapabilityMajor": "computeMajor",
    "computeCapabilityMinor": "computeMinor",
}
_HOSTNAME = re.compile(r"host ?name", re.IGNORECASE)
_DRIVER = re.compile(r"(nvidia|gpu|cuda) ?driver ?version", re.IGNORECASE)


def target_header(database: Database, process: int | None) -> Header:
    """GPUs as the process numbers them, start of the session and host; None where the export has no such table."""
    return {
        **NO_HEADER,
        "deviceProperties": _gpus(database, process),
        "baseTimeNanoseconds": _session_start_ns(database),
        "host_name": _environment(database, _HOSTNAME),
    }


def driver(database: Database) -> str | None:
    """The version of the NVIDIA driver."""
    return _environment(database, _DRIVER)


def nsys_version(database: Database) -> str | None:
    """The version of nsys that wrote the export."""
    rows = database.rows("META_DATA_EXPORT", "name", "value")
    return next((str(row["value"]) for row in rows if row.get("name") == "EXPORT_PRODUCT_VERSION"), None)


def process_name(database: Database, process: int) -> str | None:
    """The name of a process."""
    rows = database.rows("PROCESSES", "pid", "name")
    return next((str(row["name"]) for row in rows if row.get("pid") == process_id(process) and row.get("name")), None)


def _gpus(database: Database, process: int | None) -> list[dict[str, Any]]:
    by_id = {
        row.get("id", index): {kineto: row.get(column) for column, kineto in _NEW_TO_KINETO.items()}
        for index, row in enumerate(database.rows(_GPUS, "id", *_NEW_TO_KINETO))
    }
    if not by_id:
        rows = database.rows(_OLD_GPUS, "deviceId", *_OLD_TO_KINETO)
        return [
            {"id": row.get("deviceId", index), **{kineto: row.get(name) for name, kineto in _OLD_TO_KINETO.items()}}
            for index, row in enumerate(rows)
        ]
    # CUDA_VISIBLE_DEVICES renumbers the GPUs of a process; events have the numbers of the process.
    devices = database.rows(_DEVICES, "gpuId", "cudaId", "pid")
    pid = None if process is None else process_id(process)
    numbers = {row.get("cudaId"): row.get("gpuId") for row in devices if pid is None or row.get("pid") == pid}
    listed = {cuda: by_id[gpu] for cuda, gpu in numbers.items() if cuda is not None and gpu in by_id}
    return [{"id": number, **gpu} for number, gpu in sorted((listed or by_id).items())]


def _session_start_ns(database: Database) -> int | None:
    rows = database.rows(_START, "utcEpochNs")
    start = rows[0].get("utcEpochNs") if rows else None
    return start if isinstance(start, int) and start > 0 else None


def _environment(database: Database, name: re.Pattern[str]) -> str | None:
    rows = database.rows(_ENVIRONMENT, "name", "value")
    return next((str(row["value"]) for row in rows if name.fullmatch(str(row.get("name"))) and row.get("value")), None)
