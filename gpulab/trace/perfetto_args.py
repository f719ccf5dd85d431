"""What a written trace says of its events besides name and time, and of itself, in the profiler's own words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gpulab.rows import Rows, Words
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
_WORDS_OF_COMMUNICATION = (("collective", "Collective name"), ("dtype", "dtype"), ("group", "Process Group Name"))


def told_of_events(run: Run, events: Rows, first: int) -> list[str]:
    """For each of some events that follow one another from row `first` on, `,"args":{...}` or nothing."""
    told: list[list[str]] = [[] for _ in range(len(events))]
    for name in _OF_EVENTS:
        rows = np.flatnonzero(events[name] >= 0)
        for row, value in zip(rows.tolist(), events[name][rows].tolist(), strict=True):
            told[row].append(f'"{name}":{value}')
    last = first + len(events)
    for side, form in (
        (run.grid_rows, _kernel),
        (run.shape_rows, _inputs),
        (run.collective_rows, _communication),
        (run.wait_rows, _waits),
    ):
        begin, end = np.searchsorted(side["event"], (first, last)).tolist()
        if begin < end:
            some = side.where(np.arange(begin, end))
            for row, words in zip((some["event"] - first).tolist(), form(some), strict=True):
                told[row] += words
    return [f',"args":{{{",".join(words)}}}' if words else "" for words in told]


def _numbers(side: Rows, forms: Sequence[tuple[str, str]]) -> Iterator[list[str]]:
    columns = [side[name].tolist() for name, _ in forms]
    for values in zip(*columns, strict=True):
        yield [form.format(value) for (_, form), value in zip(forms, values, strict=True) if value >= 0]


def _kernel(side: Rows) -> Iterator[list[str]]:
    for words, share in zip(_numbers(side, _OF_KERNELS), side["occupancy_frac"].tolist(), strict=True):
        # Nine figures tell one float32 from the next.
        yield [*words, f'"est. achieved occupancy %":{100 * share:.9g}'] if share == share else words


def _waits(side: Rows) -> Iterator[list[str]]:
    return _numbers(side, _OF_WAITS)


def _inputs(side: Rows) -> Iterator[list[str]]:
    """Sizes and types are kept as JSON, and go out so."""
    shapes, dtypes = (_json(side.words(name)) for name in ("shapes", "dtypes"))
    for sizes, types in zip(shapes, dtypes, strict=True):
        pairs = (("Input Dims", sizes), ("Input type", types))
        yield [f'"{key}":{value}' for key, value in pairs if value is not None]


def _json(words: Words) -> list[str | None]:
    """Each row as JSON; None where it is none, which a stored run might hold."""
    known: dict[int, str | None] = {-1: None}
    for code in set(words.codes.tolist()) - {-1}:
        try:
            known[code] = json.dumps(json.loads(words.vocabulary[code]))
        except (ValueError, RecursionError):
            known[code] = None
    return [known[code] for code in words.codes.tolist()]


def _communication(side: Rows) -> Iterator[list[str]]:
    texts = [side.words(name).to_list() for name, _ in _WORDS_OF_COMMUNICATION]
    for words, *values in zip(_numbers(side, _OF_COMMUNICATION), *texts, strict=True):
        pairs = zip(_WORDS_OF_COMMUNICATION, values, strict=True)
        yield [*words, *(f'"{key}":{json.dumps(value)}' for (_, key), value in pairs if value is not None)]


def header(run: Run) -> bytes:
    """What stands before the events: where they are from."""
    told: dict[str, Any] = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "otherData": {"written by": "gpulab", "run": run.name[:1000], "source": str(run.source)[:1000]},
        "deviceProperties": [_gpu(gpu) for gpu in run.machine.gpus],
        **dict.fromkeys(run.recording.options, 1),
    }
    if run.began_ns is not None:
        told["baseTimeNanoseconds"] = run.began_ns
    if run.rank is not None:
        told["distributedInfo"] = {"rank": run.rank, "world_size": run.facts.get("world_size")}
    return json.dumps(told)[1:-1].encode() + b","


def _gpu(gpu: Gpu) -> dict[str, Any]:
    major, _, minor = (gpu.compute_capability or "").partition(".")
    told = {
        "id": gpu.index,
        "name": gpu.name,
        "totalGlobalMem": gpu.memory_bytes,
        "numSms": gpu.multiprocessors,
        "computeMajor": int(major) if major.isdigit() else None,
        "computeMinor": int(minor) if minor.isdigit() else None,
    }
    return {key: value for key, value in told.items() if value is not None}
