"""Damages traces and saved runs at random and opens them: each gives a run or a GpulabError, soon and in little memory.

    python tests/support/fuzz.py [--count 10000] [--seed 0]

Every input has a number; `--only N` repeats one. An input that fails is kept in build/fuzz/ with its number.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import io
import json
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import gpulab
from gpulab import store, trace
from gpulab.run import TABLE_FIELDS
from gpulab.tables import SIDE_TABLES
from gpulab.trace.reading import chunks as cut_
from gpulab.trace.reading import text_blocks

MEMORY_BYTES = 2 * 2**30  # of address space beyond what the process has when it begins
LIMIT_S = 20  # a hang; the slowest honest input takes a twentieth
LIMITS = trace.Limits(text_bytes=64 * 2**20, event_bytes=4 * 2**20, ratio_from_bytes=16 * 2**20, events=200_000)
Maker = Callable[[random.Random, bytes], bytes]

_TOKENS = (
    *(b"NaN", b"-Infinity", b"N/A", b"null", b"true", b"{}", b"[]", b'""', b"-1", b"1e999", b"1e-999", b"0.1e1"),
    *(b"9" * 400, b"18446744073709551616", b"4294967295", b'"\\ud800"', b'"\\', b"\\u0000", b"\xff\xfe", b"\x00"),
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"},{", b'},{"ph":', b'{"ph":"X"},', b"]}", b'"traceEvents":['),
    *(b"[" * 5000, b'{"a":' * 5000, b'"' + b"x" * 100_000 + b'"', b" " * 100_000, b"\n", b"/*", b"\xef\xbb\xbf"),
)
_PHASES = ("X", "i", "M", "s", "f", "B", "E", "C", "?", "")
_WORDS = ("kernel", "cpu_op", "cuda_runtime", "cuda_sync", "gpu_memcpy", "python_function", "nonsense")
_VALUES = (None, True, "7", "x", 1.5, -3, 0, 2**40, 2**70, 1e300, -1e300, [], [1], {}, {"a": [1]}, [[1], 2], "é" * 3)


class TooLong(BaseException):
    """An input took longer than any should: no Exception, so that nothing catches it on the way."""


def main() -> int:
    """Open so many damaged inputs, and tell what became of them; 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    began = time.perf_counter()
    numbers = range(options.count) if options.only is None else [options.only]
    tally, failures, (slowest, which) = run(numbers, options.seed, keep=Path("build/fuzz"))
    for outcome, count in tally.most_common():
        print(f"{count:8,}  {outcome}")
    spent = time.perf_counter() - began
    print(f"{sum(tally.values()):8,}  inputs in {spent:.0f} s; the slowest, number {which}, took {slowest:.2f} s")
    for failure in failures:
        print(failure, file=sys.stderr)
    return bool(failures)


def run(
    numbers: range | list[int], seed: int, keep: Path | None = None
) -> tuple[Counter[str], list[str], tuple[float, int]]:
    """What became of these inputs, how those failed that did, and how long the slowest took, in seconds."""
    tally: Counter[str] = Counter()
    failures: list[str] = []
    slowest = (0.0, -1)
    sound = originals()
    with bounded(), tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            name, text = damaged(number, seed, sound)
            began = time.perf_counter()
            try:
                outcome = opened(number, name, text, Path(folder))
            except BaseException as error:
                outcome = f"FAILED: {type(error).__name__}"
                failures.append(f"input {number}: {''.join(traceback.format_exception(error, limit=-6))}")
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{seed}-{number}-{name}").write_bytes(text)
                if isinstance(error, KeyboardInterrupt):
                    raise
            tally[outcome] += 1
            slowest = max(slowest, (time.perf_counter() - began, number))
    return tally, failures, slowest


class bounded:  # noqa: N801  (used as a function)
    """Within it the process has so much more address space, and an alarm raises TooLong."""

    def __enter__(self) -> None:
        self._before = resource.getrlimit(resource.RLIMIT_AS)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, self._before[1]))
        self._handler = signal.signal(signal.SIGALRM, self._late)

    def __exit__(self, *_: object) -> None:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, self._handler)
        resource.setrlimit(resource.RLIMIT_AS, self._before)

    @staticmethod
    def _late(number: int, frame: FrameType | None) -> None:
        raise TooLong


def opened(number: int, name: str, text: bytes, folder: Path) -> str:
    """Open one input as a user would, with any size of block; what came of it."""
    dice = random.Random(number)
    text_blocks.BLOCK = cut_.BLOCK = dice.choice((2**20, 4096, 300))
    path = folder / name
    path.write_bytes(text)
    signal.alarm(LIMIT_S)
    try:
        run = store.open(path) if store.is_run(path) else trace.read(path, limits=LIMITS)
    except gpulab.GpulabError as error:
        if str(path) in error.problem and error.why and error.fix:
            return "refused with a reason"
        raise
    finally:
        signal.alarm(0)
        text_blocks.BLOCK = cut_.BLOCK = 2**20
    check(run)
    if dice.random() < 0.3:
        signal.alarm(LIMIT_S)
        gpulab.report(run)  # whatever was read can be judged and shown
        signal.alarm(0)
    return "a part, and what was lost" if run.recording.lost else "a run"


def check(run: gpulab.Run) -> None:
    """What holds of every run. Raises AssertionError."""
    for field in TABLE_FIELDS:
        rows = getattr(run, field)
        assert len({len(values) for values in rows.columns.values()}) == 1
    count = len(run.event_rows)
    assert (run.event_rows["dur_ns"] >= 0).all()
    assert (run.event_rows["start_ns"] >= 0).all()
    assert (run.event_rows["thread"] < max(1, len(run.threads))).all()
    for rows in (getattr(run, field) for field, table in TABLE_FIELDS.items() if table in SIDE_TABLES):
        assert ((rows["event"] >= 0) & (rows["event"] < count)).all()
    if count:
        assert int((run.event_rows["start_ns"] + run.event_rows["dur_ns"]).max()) == run.span_ns


def originals() -> list[tuple[str, bytes]]:
    """Sound inputs to start from: every dialect in a few events, as Kineto, json and msgspec lay them out."""
    document = {"schemaVersion": 1, "record_shapes": 1, "baseTimeNanoseconds": 10**18, "traceEvents": list(events())}
    compact = json.dumps(document, separators=(",", ":")).encode()
    spread = json.dumps(document, indent=2).encode()
    events_only = json.dumps(document["traceEvents"]).encode()
    inputs = [("compact.json", compact), ("spread.json", spread), ("bare.json", events_only)]
    inputs += [(f"{name}.gz", gzip.compress(text, mtime=0)) for name, text in inputs]
    with tempfile.TemporaryDirectory() as folder:
        saved = store.save(trace.read(spread), Path(folder) / "run.gpulab")
        return [*inputs, ("run.gpulab", saved.read_bytes())]


def events() -> Iterator[dict[str, object]]:
    """One or more of everything a profiler writes, some of it twenty times."""
    yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "thread 1 (python)"}}
    yield {
        "ph": "X",
        "cat": "Trace",
        "name": "PyTorch Profiler (0)",
        "pid": "Spans",
        "tid": "PyTorch Profiler",
        "ts": 1,
    }
    comms = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 8, "Group size": 2, "Seq": 4}
    for step in range(20):
        at = 1000.0 * step + 0.125

        def x(cat: str, name: str, ts: float, dur: float, tid: object = 1, **args: object) -> dict[str, object]:
            return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}

        work = {"device": 0, "stream": 7, "correlation": step + 1}
        yield x("user_annotation", f"ProfilerStep#{step}", at, 999)
        yield x("cpu_op", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 300)
        yield x(
            "cpu_op", "aten::mm", at + 310, 50, **{"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}
        )
        yield x("cuda_runtime", "cudaLaunchKernel", at + 320, 9, correlation=step + 1, cbid=211)
        kernel = {"grid": [8, 1, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 0}
        yield x("kernel", "void gemm<float>(Params)", at + 340, 90, 7, **work, **kernel)
        yield {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": step, "pid": 1, "tid": 1, "ts": at + 320}
        yield x("kernel", "ncclDevKernel_AllReduce", at + 440, 20, 7, **work, **comms)
        yield x("cuda_sync", "Event Sync", at + 460, 3, 7, **work, wait_on_stream=7)
        yield x("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", at + 470, 30, 7, **work, bytes=4096)
        yield x("python_function", 'train.py(7): "step"', at + 500, 60, **{"Python id": step})
        freed = {"Bytes": -512, "Addr": 2**47, "Device Id": 0, "Device Type": 1, "Total Allocated": 0}
        yield {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": at + 600, "args": freed}


def damaged(number: int, seed: int, sound: list[tuple[str, bytes]]) -> tuple[str, bytes]:
    """One of the sound inputs with some damage: the same for the same number and seed."""
    dice = random.Random(f"{seed}/{number}")
    name, text = dice.choice(sound)
    packed = name.endswith(".gz") and dice.random() < 0.5
    text = gzip.decompress(text) if packed else text
    if name.endswith(".gpulab") and dice.random() < 0.5:
        return name, forged(dice, text)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 8, 30))):
        text = dice.choice(MAKERS if b"traceEvents" in text or text[:1] == b"[" else MAKERS[:5])(dice, text)
    return name, gzip.compress(text, 1, mtime=0) if packed else text


def forged(dice: random.Random, text: bytes) -> bytes:
    """A saved run with damage in one table, its description or run.json, and with checksums that fit."""
    with zipfile.ZipFile(io.BytesIO(text)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = dice.choice(list(parts))
    start = 12 + int.from_bytes(parts[name][8:12], "little")
    if name == "run.json":
        parts[name] = dice.choice(MAKERS)(dice, parts[name])
    elif dice.random() < 0.3:
        parts[name] = dice.choice(MAKERS[:5])(dice, parts[name])
    else:
        maker = dice.choice((*MAKERS[:5], replace_number, replace_number, replace_number))
        header = zlib.compress(maker(dice, zlib.decompress(parts[name][12:start])))
        parts[name] = parts[name][:8] + len(header).to_bytes(4, "little") + header + parts[name][start:]
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):  # run.json may be no JSON any more
        document = json.loads(parts["run.json"])
        for part in parts.keys() - {"run.json"}:
            document["sha256"][part.rpartition(".")[0]] = hashlib.sha256(parts[part]).hexdigest()
        parts["run.json"] = json.dumps(document).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for part, content in parts.items():
            archive.writestr(part, content)
    return buffer.getvalue()


def flip(dice: random.Random, text: bytes) -> bytes:
    """One byte becomes another."""
    at = dice.randrange(len(text) or 1)
    return text[:at] + bytes([dice.randrange(256)]) + text[at + 1 :]


def drop(dice: random.Random, text: bytes) -> bytes:
    """A stretch is missing."""
    at = dice.randrange(len(text) or 1)
    return text[:at] + text[at + dice.choice((1, 2, 10, 100, 5000)) :]


def cut(dice: random.Random, text: bytes) -> bytes:
    """The end is missing."""
    return text[: dice.randrange(len(text) or 1)]


def double(dice: random.Random, text: bytes) -> bytes:
    """A stretch stands there twice, or somewhere else too."""
    at, to = dice.randrange(len(text) or 1), dice.randrange(len(text) or 1)
    return text[:to] + text[at : at + dice.choice((3, 50, 2000))] + text[to:]


def swap(dice: random.Random, text: bytes) -> bytes:
    """A stretch is overwritten by one from elsewhere."""
    at, to, size = dice.randrange(len(text) or 1), dice.randrange(len(text) or 1), dice.choice((1, 8, 300))
    return text[:to] + text[at : at + size] + text[to + size :]


def insert(dice: random.Random, text: bytes) -> bytes:
    """A token stands where none belongs."""
    at = dice.randrange(len(text) or 1)
    return text[:at] + dice.choice(_TOKENS) + text[at:]


def replace_number(dice: random.Random, text: bytes) -> bytes:
    """A number becomes something else."""
    at = text.find(b": " if b": " in text else b":", dice.randrange(len(text) or 1))
    if at < 0:
        return text
    end = at + 1
    while end < len(text) and text[end : end + 1] not in b",}]":
        end += 1
    return text[: at + 1] + dice.choice(_TOKENS) + text[end:]


def revalue(dice: random.Random, text: bytes) -> bytes:
    """Sound JSON with something else in some field of some events."""
    try:
        document = json.loads(text)
        events = document if isinstance(document, list) else document["traceEvents"]
        for event in dice.sample(events, min(len(events), dice.choice((1, 5, 1000)))):
            place = event["args"] if dice.random() < 0.5 and event.get("args") else event
            key = dice.choice([*place, "ph", "cat", "ts"])
            place[key] = dice.choice(
                {"ph": _PHASES, "cat": _WORDS}.get(key, _VALUES) if dice.random() < 0.8 else _VALUES
            )
        return json.dumps(document).encode()
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return insert(dice, text)  # it is no sound JSON any more


MAKERS: tuple[Maker, ...] = (flip, drop, cut, double, swap, insert, insert, replace_number, revalue, revalue)


if __name__ == "__main__":
    sys.exit(main())
