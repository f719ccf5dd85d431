"""Calls of the CUDA runtime and driver, and NVTX ranges, as columns of the events table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from gpulab.intervals import Ints
from gpulab.rows import Array
from gpulab.tables import EventKind
from gpulab.trace.columns.categories import EventFamily, kind_of
from gpulab.trace.columns.event_arrays import EventArrays
from gpulab.trace.columns.vocabulary import Vocabulary
from gpulab.trace.nsight.database import CALLS, NVTX, Database, texts_of
from gpulab.trace.nsight.global_ids import thread_id
from gpulab.trace.nsight.nvtx_names import classify_ranges, numbered_steps

OVERHEAD = "CUPTI_ACTIVITY_KIND_OVERHEAD"

_VERSION = re.compile(r"_v\d+$")  # cudaLaunchKernel_v7000: the CUDA version that introduced the call
# Values of nsys's enumeration of events.
_PUSH_POP, _START_END, _TEXT_PUSH_POP, _TEXT_START_END, _DOMAIN = 59, 60, 70, 71, 75


class Threads:
    """The host threads of a process, numbered in order of first use."""

    def __init__(self) -> None:
        self._codes: dict[tuple[int, str], int] = {}

    def codes(self, global_tids: Ints, suffix: str = "") -> Array:
        """The number of each thread; with a suffix, of a lane of its own beside the thread."""
        distinct, index = np.unique(global_tids, return_inverse=True)
        codes = [self._codes.setdefault((identity, suffix), len(self._codes)) for identity in distinct.tolist()]
        numbers: Array = np.array(codes, np.int32)[index]
        return numbers

    def names(self, labels: dict[int, str]) -> list[str]:
        """The name of each thread; `labels` are the names by id."""
        texts = [labels.get(identity) for identity, _ in self._codes]
        return [
            _thread_name(label, identity, repeated=texts.count(label) > 1) + suffix
            for label, (identity, suffix) in zip(texts, self._codes, strict=True)
        ]


def _thread_name(label: str | None, global_tid: int, *, repeated: bool) -> str:
    number = thread_id(global_tid)
    if not label:
        return f"thread {number}"
    return f"{label} {number}" if repeated else label


def runtime_calls(database: Database, condition: str, names: Vocabulary, threads: Threads) -> EventArrays:
    """Calls of the CUDA runtime and driver."""
    return _calls(database, CALLS, condition, names, threads)


def overheads(database: Database, condition: str, names: Vocabulary, threads: Threads) -> EventArrays:
    """Overhead of the profiler."""
    part = _calls(database, OVERHEAD, condition, names, threads)
    kind = np.full(len(part), EventKind.OVERHEAD.value, np.int8)
    return EventArrays({**part.columns, "kind": kind})


def _calls(database: Database, table: str, condition: str, names: Vocabulary, threads: Threads) -> EventArrays:
    values = database.integers(
        table,
        {
            "start_ns": database.column(table, "start"),
            "end_ns": database.column(table, "end"),
            "name": database.column(table, "nameId"),
            "global_tid": database.column(table, "globalTid"),
            "correlation": database.column(table, "correlationId"),
        },
        condition,
    )
    ids, index = np.unique(values["name"], return_inverse=True)
    texts = [_VERSION.sub("", text) for text in texts_of(database.strings(ids), ids.tolist())]
    kinds = np.array([kind_of(EventFamily.RUNTIME, text).value for text in texts], np.int8)
    return EventArrays(
        {
            "start_ns": values["start_ns"],
            "dur_ns": values["end_ns"] - values["start_ns"],
            "kind": kinds[index],
            "name": names.codes(texts, len(texts))[index],
            "thread": threads.codes(values["global_tid"]),
            "correlation": np.where(values["correlation"] > 0, values["correlation"], -1),
        }
    )


def nvtx_ranges(database: Database, condition: str, names: Vocabulary, threads: Threads) -> EventArrays:
    """Closed NVTX ranges: annotations, and the operators of PyTorch that `emit_nvtx` records.

    Ranges of push and pop are nested within their thread. Ranges of start and end may overlap, so each thread has a
    lane of its own for them.
    """
    has_types = database.has(NVTX, "eventType")
    is_range = f"eventType IN ({_PUSH_POP}, {_START_END}, {_TEXT_PUSH_POP}, {_TEXT_START_END})" if has_types else "1"
    condition = f'{condition} AND {is_range} AND "end" >= start'
    values = database.integers(
        NVTX,
        {
            "start_ns": database.column(NVTX, "start"),
            "end_ns": database.column(NVTX, "end"),
            "type": database.column(NVTX, "eventType", str(_PUSH_POP)),
            "global_tid": database.column(NVTX, "globalTid"),
            "text": database.column(NVTX, "textId"),
            "domain": database.column(NVTX, "domainId", "0"),
        },
        condition,
    )
    texts, codes = _texts(database, condition, values["text"])
    lanes = np.isin(values["type"], (_START_END, _TEXT_START_END))
    thread = np.full(len(codes), -1, np.int32)
    for on_lane, suffix in ((False, ""), (True, ", start-end ranges")):
        thread[lanes == on_lane] = threads.codes(values["global_tid"][lanes == on_lane], suffix)
    name, kind = _classified(texts, codes, values["domain"], _domains(database), names)
    kind[lanes] = EventKind.ANNOTATION.value  # of overlapping ranges, none is a step or an operator
    start = values["start_ns"]
    columns = {"start_ns": start, "dur_ns": values["end_ns"] - start, "kind": kind, "name": name, "thread": thread}
    on_threads = {**columns, "thread": np.where(lanes, -1, thread)}
    kind[numbered_steps(on_threads, names.texts())] = EventKind.STEP.value
    return EventArrays(columns)


def _classified(
    texts: Sequence[str], codes: Ints, domain: Ints, domains: Mapping[int, str], names: Vocabulary
) -> tuple[Array, Array]:
    """The code of the name, and the kind, of each range."""
    name = np.zeros(len(codes), np.int32)
    kind = np.full(len(codes), EventKind.ANNOTATION.value, np.int8)
    for identity in np.unique(domain).tolist():
        rows = np.flatnonzero(domain == identity)
        used, index = np.unique(codes[rows], return_inverse=True)
        library = domains.get(identity) if identity != 0 else None
        ranges = classify_ranges([texts[code] for code in used.tolist()], library)
        name[rows] = names.codes([text for text, _ in ranges], len(ranges))[index]
        kind[rows] = np.array([each.value for _, each in ranges], np.int8)[index]
    return name, kind


def _texts(database: Database, condition: str, text_ids: Ints) -> tuple[list[str], Ints]:
    """The distinct texts of these ranges, and the index of each range's text: its own, or one of the string table."""
    texts, codes = database.distinct_texts(NVTX, "text", condition)
    if not len(codes):
        codes = np.full(len(text_ids), -1, np.int64)
    ids, index = np.unique(text_ids, return_inverse=True)
    registered = np.arange(len(ids)) + len(texts)
    by_id = database.strings(ids)
    texts = [*texts, *(by_id.get(identity, "NVTX range") for identity in ids.tolist())]
    return texts, np.where(codes >= 0, codes, registered[index]) if len(ids) else codes


def _domains(database: Database) -> dict[int, str]:
    if not database.has(NVTX, "eventType", "domainId"):
        return {}
    condition = f"eventType = {_DOMAIN}"
    names = database.distinct_pairs(NVTX, "domainId", "text", condition)
    if database.has(NVTX, "textId"):
        ids = database.integers(NVTX, {"domain": "domainId", "text": "textId"}, condition)
        texts = database.strings(ids["text"])
        for domain, text in zip(ids["domain"].tolist(), ids["text"].tolist(), strict=True):
            if domain not in names and text in texts:
                names[domain] = texts[text]
    return names
