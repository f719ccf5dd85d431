"""Arguments of events and metadata of a written trace, in the profiler's format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gpulab.rows import Rows, TextColumn
from gpulab.run import Gpu, Run

_OF_EVENTS = ("correlation", "bytes", "device", "stream")
_OF_KERNELS = (
    ("grid", '"grid":[{},1,1]'),
    ("block", '"block":[{},1,1]'),
    ("registers", '"registers per thread":{}'),
    ("shared_bytes", '"shared memory":{}'),
)
_OF_COMMUNICATION = (
    ("elements_in", '"In msg nelems":{}'),
    ("elements_out", '"Out msg nelems":{}'),
    ("group_size", '"Group size":{}'),
    ("sequence", '"Seq":{}'),
)
_OF_WAITS = (
    ("wait_on_stream", '"wait_on_stream":{}'),
    ("wait_on_correlation", '"wait_on_cuda_event_record_corr_id":{}'),
)
_TEXTS_OF_COMMUNICATION = (
    ("collective", "Collective name"),
    ("dtype", "dtype"),
    ("group", "Process Group Name"),
    ("group_description", "Process Group Description"),
)


def event_arguments(run: Run, events: Rows, first: int) -> list[str]:
    """For each of consecutive events from row `first` on, `,"args":{...}` or nothing."""
    arguments: list[list[str]] = [[] for _ in range(len(events))]
    for name in _OF_EVENTS:
        rows = np.flatnonzero(events[name] >= 0)
        for row, value in zip(rows.tolist(), events[name][rows].tolist(), strict=True):
            arguments[row].append(f'"{name}":{value}')
    last = first + len(events)
    for side, form in (
        (run.grid_rows, _kernel),
        (run.shape_rows, _inputs),
        (run.collective_rows, _communication),
        (run.wait_rows, _waits),
    ):
        begin, end = np.searchsorted(side["event"], (first, last)).tolist()
        if begin < end:
            some = side.select(np.arange(begin, end))
            for row, texts in zip((some["event"] - first).tolist(), form(some), strict=True):
                arguments[row] += texts
    return [f',"args":{{{",".join(texts)}}}' if texts else "" for texts in arguments]


def _numbers(side: Rows, forms: Sequence[tuple[str, str]]) -> Iterator[list[str]]:
    columns = [side[name].tolist() for name, _ in forms]
    for values in zip(*columns, strict=True):
        yield [form.format(value) for (_, form), value in zip(forms, values, strict=True) if value >= 0]


def _kernel(side: Rows) -> Iterator[list[str]]:
    for texts, share in zip(_numbers(side, _OF_KERNELS), side["occupancy_frac"].tolist(), strict=True):
        # Nine digits distinguish any two float32 values.
        yield [*texts, f'"est. achieved occupancy %":{100 * share:.9g}'] if share == share else texts


def _waits(side: Rows) -> Iterator[list[str]]:
    return _numbers(side, _OF_WAITS)


def _inputs(side: Rows) -> Iterator[list[str]]:
    """Shapes and types, which are stored as JSON and written unchanged."""
    shapes, dtypes = (_json(side.text(name)) for name in ("shapes", "dtypes"))
    for sizes, types in zip(shapes, dtypes, strict=True):
        pairs = (("Input Dims", sizes), ("Input type", types))
        yield [f'"{key}":{value}' for key, value in pairs if value is not None]


def _json(column: TextColumn) -> list[str | None]:
    """Each row as JSON; None if it is not valid, which is possible in a stored run."""
    json_of: dict[int, str | None] = {-1: None}
    for code in set(column.codes.tolist()) - {-1}:
        try:
            json_of[code] = json.dumps(json.loads(column.vocabulary[code]))
        except (ValueError, RecursionError):
            json_of[code] = None
    return [json_of[code] for code in column.codes.tolist()]


def _communication(side: Rows) -> Iterator[list[str]]:
    text_columns = [side.text(name).to_list() for name, _ in _TEXTS_OF_COMMUNICATION]
    for texts, *values in zip(_numbers(side, _OF_COMMUNICATION), *text_columns, strict=True):
        pairs = zip(_TEXTS_OF_COMMUNICATION, values, strict=True)
        yield [*texts, *(f'"{key}":{json.dumps(value)}' for (_, key), value in pairs if value is not None)]


def header(run: Run) -> bytes:
    """Metadata at the beginning of the file: origin, GPUs, options."""
    metadata: dict[str, Any] = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "otherData": {"written by": "gpulab", "run": run.name[:1000], "source": str(run.source)[:1000]},
        "deviceProperties": [_gpu(gpu) for gpu in run.machine.gpus],
        **dict.fromkeys(run.recording.options, 1),
    }
    if run.began_ns is not None:
        metadata["baseTimeNanoseconds"] = run.began_ns
    if run.rank is not None:
        metadata["distributedInfo"] = {"rank": run.rank, "world_size": run.facts.get("world_size")}
    return json.dumps(metadata)[1:-1].encode() + b","


def _gpu(gpu: Gpu) -> dict[str, Any]:
    major, _, minor = (gpu.compute_capability or "").partition(".")
    fields = {
        "id": gpu.index,
        "name": gpu.name,
        "totalGlobalMem": gpu.memory_bytes,
        "numSms": gpu.multiprocessors,
        "computeMajor": int(major) if major.isdigit() else None,
        "computeMinor": int(minor) if minor.isdigit() else None,
    }
    return {key: value for key, value in fields.items() if value is not None}
