"""Write a run in Chrome's Trace Event Format, like PyTorch's profiler: for ui.perfetto.dev, chrome://tracing, `load`.

It is written chunk by chunk, so that a run of any size needs little memory. Times are us with three decimals, exact to
the ns. Additions to the events (steps, the ledger, findings, sensors) have the category "Trace", which readers do not
count as work: a file that is read back gives the events and nothing else.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import DEVICE_KINDS, RUNTIME_KINDS, EventKind
from gpulab.trace.columns.vocabulary import MAX_TEXT_LENGTH
from gpulab.trace.perfetto_args import event_arguments, header
from gpulab.trace.reading.text_blocks import fast_zlib

EVENTS_PER_CHUNK = 20_000  # events converted to text together
HOST, NOTES, SENSORS = 100_000, 100_001, 100_002  # process ids; smaller ones are GPUs, by index
_CATEGORY = {
    EventKind.OP: "cpu_op",
    EventKind.ANNOTATION: "user_annotation",
    EventKind.STEP: "user_annotation",
    EventKind.LOADER: "user_annotation",
    EventKind.PYTHON: "python_function",
    EventKind.OVERHEAD: "overhead",
    EventKind.SYNC_RECORD: "cuda_sync",
    EventKind.KERNEL: "kernel",
    EventKind.MEMCPY: "gpu_memcpy",
    EventKind.MEMSET: "gpu_memset",
    EventKind.COLLECTIVE: "kernel",
    **dict.fromkeys(RUNTIME_KINDS, "cuda_runtime"),
}


@dataclass(frozen=True, eq=False)
class Track:
    """A lane next to the events: named boxes that do not overlap; `about` describes all of them."""

    name: str
    start_ns: Ints
    dur_ns: Ints
    names: Sequence[str]
    description: str = ""


@dataclass(frozen=True, eq=False)
class Counter:
    """A curve: values over time; NaN leaves a hole."""

    name: str
    at_ns: Ints
    values: NDArray[np.float64]


def write_trace(run: Run, tracks: Sequence[Track] = (), counters: Iterable[Counter] = ()) -> Iterator[bytes]:
    """The content of the file, chunk by chunk."""
    run, by_ns = _from_zero(run, [track.start_ns for track in tracks])
    tracks = [replace(track, start_ns=track.start_ns + by_ns) for track in tracks]
    yield b"{" + header(run) + b'"traceEvents":[\n'
    lines = _lines(run, tracks, (replace(counter, at_ns=counter.at_ns + by_ns) for counter in counters))
    yield next(lines).encode()
    for text in lines:
        yield b",\n" + text.encode()
    yield b"\n]}\n"


def _from_zero(run: Run, others: Sequence[Ints]) -> tuple[Run, int]:
    """Shift the run so that no time is negative; returns it and the shift. Memory events may precede all others."""
    starts = (run.event_rows["start_ns"], run.memory_rows["at_ns"], *others)
    by_ns = max(0, *(-int(start.min(initial=0)) for start in starts))
    if not by_ns:
        return run, 0
    events, memory = run.event_rows.shifted(by_ns, "start_ns"), run.memory_rows.shifted(by_ns, "at_ns")
    began_ns = None if run.began_ns is None else run.began_ns - by_ns
    return replace(run, event_rows=events, memory_rows=memory, began_ns=began_ns), by_ns


def gzip_compressed(content: Iterable[bytes]) -> Iterator[bytes]:
    """Compress the content as .gz."""
    compressor = fast_zlib.compressobj(1, zlib.DEFLATED, 31)
    for chunk in content:
        yield compressor.compress(chunk)
    yield compressor.flush()


def _lines(run: Run, tracks: Sequence[Track], counters: Iterable[Counter]) -> Iterator[str]:
    """Chunks of the list of events; none is empty."""
    yield ",\n".join(_labels(run, tracks))
    for number, track in enumerate(tracks, start=1):
        yield from _track(track, number)
    for counter in counters:
        yield from _counter(counter)
    yield from _events(run)
    yield from _arrows(run.event_rows)
    yield from _memory_events(run.memory_rows)


def _labels(run: Run, tracks: Sequence[Track]) -> Iterator[str]:
    """Names and order of processes and threads."""
    name = f"gpulab: {run.name}, {run.source}"
    yield from _process(NOTES, name, 0)
    for number, track in enumerate(tracks, start=1):
        yield from _thread(NOTES, number, track.name, number)
    yield from _process(HOST, "host", 1)
    for number, thread in enumerate(run.threads):
        yield from _thread(HOST, number + 1, thread, 0 if number == run.main_thread else number + 1)
    yield from _process(SENSORS, "sensors", 3)
    names = {gpu.index: gpu.name for gpu in run.machine.gpus}
    events = run.event_rows
    work = events["kind"] >= int(EventKind.SYNC_RECORD)
    for device in np.unique(events["device"][work]).tolist():
        yield from _process(_gpu(device), f"GPU {device} {names.get(device, '')}".strip(), 2)
        for stream in np.unique(events["stream"][work & (events["device"] == device)]).tolist():
            label = f"stream {stream}" if stream >= 0 else "unknown stream"
            yield from _thread(_gpu(device), _lane(stream), label, _lane(stream))


def _gpu(device: int) -> int:
    return device if device >= 0 else HOST - 1


def _lane(stream: int) -> int:
    return stream if stream >= 0 else 999_999


def _process(pid: int, name: str, order: int) -> Iterator[str]:
    yield f'{{"ph":"M","name":"process_name","pid":{pid},"tid":0,"args":{{"name":{_text(name)}}}}}'
    yield f'{{"ph":"M","name":"process_sort_index","pid":{pid},"tid":0,"args":{{"sort_index":{order}}}}}'


def _thread(pid: int, tid: int, name: str, order: int) -> Iterator[str]:
    yield f'{{"ph":"M","name":"thread_name","pid":{pid},"tid":{tid},"args":{{"name":{_text(name)}}}}}'
    yield f'{{"ph":"M","name":"thread_sort_index","pid":{pid},"tid":{tid},"args":{{"sort_index":{order}}}}}'


def _text(text: str) -> str:
    """JSON in ASCII: no character of a name can end the string or be lost."""
    return json.dumps(text[:MAX_TEXT_LENGTH].encode("utf-8", "replace").decode())


def _us(ns: int) -> str:
    us, rest = divmod(abs(ns), 1000)
    return f"{'-' * (ns < 0)}{us}.{rest:03d}"


def _track(track: Track, number: int) -> Iterator[str]:
    about = f',"args":{{"about":{_text(track.description)}}}' if track.description else ""
    tail = f'"pid":{NOTES},"tid":{number}{about}}}'
    heads = {name: f'{{"ph":"X","cat":"Trace","name":{_text(name)},"ts":' for name in set(track.names)}
    times = (part.tolist() for column in (track.start_ns, track.dur_ns) for part in np.divmod(column, 1000))
    yield from _join_lines(
        f'{heads[name]}{us}.{ns:03d},"dur":{dur_us}.{dur_ns:03d},{tail}'
        for name, us, ns, dur_us, dur_ns in zip(track.names, *times, strict=True)
    )


def _counter(counter: Counter) -> Iterator[str]:
    head = f'{{"ph":"C","name":{_text(counter.name)},"pid":{SENSORS},"tid":0,"ts":'
    has_value = np.isfinite(counter.values)
    yield from _join_lines(
        f'{head}{_us(at)},"args":{{"value":{value:.9g}}}}}'
        for at, value in zip(counter.at_ns[has_value].tolist(), counter.values[has_value].tolist(), strict=True)
    )


def _join_lines(lines: Iterable[str]) -> Iterator[str]:
    buffer: list[str] = []
    for line in lines:
        buffer.append(line)
        if len(buffer) >= EVENTS_PER_CHUNK:
            yield ",\n".join(buffer)
            buffer = []
    if buffer:
        yield ",\n".join(buffer)


def _heads(events: Rows) -> list[str]:
    """Kind and name of an event as JSON, once per pair."""
    column = events.text("name")
    names = [*map(_text, column.vocabulary), '""']
    return [
        f'{{"ph":"X","cat":"{_CATEGORY[kind]}","name":{name},"ts":'
        for kind in map(EventKind, range(len(EventKind)))
        for name in names
    ]


def _events(run: Run) -> Iterator[str]:
    events = run.event_rows
    heads, per_kind = _heads(events), len(events.text("name").vocabulary) + 1
    for first in range(0, len(events), EVENTS_PER_CHUNK):
        some = events.select(_row_range(events, first))
        head_codes = some["kind"].astype(np.int64) * per_kind + some["name"] % per_kind  # an absent name: the last one
        start, dur = (np.divmod(some[column], 1000) for column in ("start_ns", "dur_ns"))
        columns = (head_codes, *start, *dur, *_process_and_thread(some))
        yield ",\n".join(
            f'{heads[head]}{us}.{ns:03d},"dur":{dur_us}.{dur_ns:03d},"pid":{pid},"tid":{tid}{args}}}'
            for head, us, ns, dur_us, dur_ns, pid, tid, args in zip(
                *(column.tolist() for column in columns), event_arguments(run, some, first), strict=True
            )
        )


def _row_range(rows: Rows, first: int) -> Ints:
    return np.arange(first, min(first + EVENTS_PER_CHUNK, len(rows)))


def _process_and_thread(events: Rows) -> tuple[Ints, Ints]:
    """Process and thread id of each event."""
    host = events["kind"] < int(EventKind.SYNC_RECORD)
    device, stream = events["device"].astype(np.int64), events["stream"]
    pid = np.where(host, HOST, np.where(device >= 0, device, HOST - 1))
    tid = np.where(host, events["thread"].astype(np.int64) + 1, np.where(stream >= 0, stream, _lane(-1)))
    return pid, tid


def _arrows(events: Rows) -> Iterator[str]:
    """Arrows from each call to the first GPU work that it started."""
    correlation = events["correlation"]
    calls = np.flatnonzero(events.is_kind(*RUNTIME_KINDS) & (correlation >= 0))
    work = np.flatnonzero(events.is_kind(*DEVICE_KINDS) & (correlation >= 0))
    calls = calls[np.unique(correlation[calls], return_index=True)[1]]
    work = work[np.unique(correlation[work], return_index=True)[1]]
    joined, call_rows, work_rows = np.intersect1d(correlation[calls], correlation[work], True, return_indices=True)
    for ends, rows in (('"s"', calls[call_rows]), ('"f","bp":"e"', work[work_rows])):
        head = f'{{"ph":{ends},"cat":"ac2g","name":"ac2g","id":'
        for first in range(0, len(rows), EVENTS_PER_CHUNK):
            some = events.select(rows[first : first + EVENTS_PER_CHUNK])
            pid, tid = _process_and_thread(some)
            us, ns = np.divmod(some["start_ns"], 1000)
            columns = (joined[first : first + EVENTS_PER_CHUNK], pid, tid, us, ns)
            yield ",\n".join(
                f'{head}{number},"pid":{process},"tid":{thread},"ts":{micros}.{rest:03d}}}'
                for number, process, thread, micros, rest in zip(*(column.tolist() for column in columns), strict=True)
            )


def _memory_events(memory: Rows) -> Iterator[str]:
    """Allocations and frees, in the profiler's format."""
    for first in range(0, len(memory), EVENTS_PER_CHUNK):
        some = memory.select(_row_range(memory, first))
        device = some["device"].astype(np.int64)
        us, ns = np.divmod(some["at_ns"], 1000)
        columns = (us, ns, some["thread"] + 1, some["address"], some["bytes"], (device >= 0).astype(np.int64), device)
        yield ",\n".join(
            f'{{"ph":"i","cat":"cpu_instant_event","s":"t","name":"[memory]","pid":{HOST},"tid":{tid},"ts":{micros}.{rest:03d},'
            f'"args":{{"Addr":{address},"Bytes":{size},"Device Type":{kind},"Device Id":{index},'
            f'"Total Allocated":{allocated},"Total Reserved":{reserved}}}}}'
            for micros, rest, tid, address, size, kind, index, allocated, reserved in zip(
                *(column.tolist() for column in columns),
                some["allocated_bytes"].tolist(),
                some["reserved_bytes"].tolist(),
                strict=True,
            )
        )
