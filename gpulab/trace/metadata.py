"""Metadata of a trace: Machine, rank, profiler options, facts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from gpulab.hardware.vendor import is_amd
from gpulab.run import Gpu, Machine
from gpulab.trace.columns.times import parse_count
from gpulab.trace.reading.chunk_events import Header

_OPTIONS = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
_MOST_GPUS = 1024
_EPOCH_NS = 10**18  # September 2001: larger times count from 1970, smaller ones do not
_LATEST_NS = 2**62  # the year 2116


def machine(header: Header) -> Machine:
    """The GPUs of the machine, as far as the trace lists them."""
    listed = header["deviceProperties"] if isinstance(header["deviceProperties"], list) else []
    gpus = tuple(_gpu(index, entry) for index, entry in enumerate(listed[:_MOST_GPUS]) if isinstance(entry, dict))
    return Machine(gpus=gpus)


def _gpu(index: int, entry: Mapping[str, Any]) -> Gpu:
    major, minor = parse_count(entry.get("computeMajor")), parse_count(entry.get("computeMinor"))
    number = parse_count(entry.get("id"))
    return Gpu(
        index=number if number >= 0 else index,
        name=str(entry.get("name") or "unknown GPU")[:200],
        memory_bytes=_positive(entry.get("totalGlobalMem")),
        multiprocessors=_positive(entry.get("numSms")),
        # AMD traces have numbers here, too (9.4), but compute capability is an NVIDIA term.
        compute_capability=f"{major}.{minor}" if major > 0 and minor >= 0 and not _is_amd(entry) else None,
    )


def _is_amd(entry: Mapping[str, Any]) -> bool:
    return is_amd(str(entry.get("name"))) or parse_count(entry.get("warpSize")) == 64


def _positive(value: Any) -> int | None:
    number = parse_count(value)
    return number if number > 0 else None


def options(header: Header) -> tuple[str, ...]:
    """The profiler options that were on, according to the trace."""
    return tuple(option for option in _OPTIONS if parse_count(header[option]) == 1)


def rank(header: Header) -> int | None:
    """The rank in a distributed job."""
    info = header["distributedInfo"]
    number = parse_count(info.get("rank")) if isinstance(info, dict) else -1
    return number if number >= 0 else None


def began_ns(header: Header, zero_ns: int) -> int | None:
    """UNIX time of the earliest event; None if unknown."""
    base = parse_count(header["baseTimeNanoseconds"])
    unix_ns = base + zero_ns if base > 0 else zero_ns
    return unix_ns if (base > 0 or zero_ns > _EPOCH_NS) and 0 < unix_ns < _LATEST_NS else None


def date(unix_ns: int | None) -> str | None:
    """ISO date of a UNIX time, in UTC."""
    if unix_ns is None:
        return None
    return datetime.fromtimestamp(unix_ns // 10**9, timezone.utc).date().isoformat()


def facts(header: Header) -> dict[str, str]:
    """Further metadata: versions, host, and the distributed job."""
    entries = {
        "cuda_runtime": _cuda_version(header["cuda_runtime_version"]),
        "cuda_driver": _cuda_version(header["cuda_driver_version"]),
        "hip_runtime": _hip_version(header["hip_runtime_version"]),
        "host": _text(header["host_name"]),
    }
    if isinstance(header["distributedInfo"], dict):
        entries["world_size"] = _text(header["distributedInfo"].get("world_size"))
        entries["distributed_backend"] = _text(header["distributedInfo"].get("backend"))
    return {key: value for key, value in entries.items() if value}


def _cuda_version(value: Any) -> str:
    number = parse_count(value)
    return f"{number // 1000}.{number % 1000 // 10}" if number >= 1000 else ""


def _hip_version(value: Any) -> str:
    number = parse_count(value)
    return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}" if number >= 10_000_000 else ""


def _text(value: Any) -> str:
    is_scalar = isinstance(value, (str, int, float)) and not isinstance(value, bool)
    return str(value)[:200].encode("utf-8", "replace").decode() if is_scalar else ""
