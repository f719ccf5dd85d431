"""Generate a large trace from a real one: the same events repeated, each replica later than the previous one.

    python benchmarks/loading/scaled_trace.py TRACE [--events 1000000] [--dir FOLDER] [--plain]

Fields that identify an event advance with each replica: its time, correlation, External id, Ev Idx, Python id,
sequence number, flow id, step number. Everything else is kept, including flow events, which are a third of many real
files. Times advance by whole microseconds, as text, so that no digit is lost; replicas do not overlap, so n replicas
are busy exactly n times as long. Metadata of the whole file appear once. The text is laid out as Kineto writes it,
whatever the layout of the source, and compressed by zlib, as torch.profiler does. An existing file is reused.
"""

from __future__ import annotations

import argparse
import gzip
import io
import re
import sys
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
import numpy as np

Fields = dict[str, str]  # of an event or of its arguments: each value as its text in the file

LAYOUT = 1  # to be raised when the same source gives another text
LEVEL = 6
AT_ONCE = 100_000  # numbers filled in at a time: bounds the text held
# Which numbers move on together, so that what was joined stays joined.
FAMILIES = {
    "id": "correlation",
    "correlation": "correlation",
    "wait_on_cuda_event_record_corr_id": "correlation",
    "External id": "external id",
    "external id": "external id",
    "Ev Idx": "index",
    "Profiler Event Index": "index",
    "Python id": "frame",
    "Python parent id": "frame",
    "Sequence number": "sequence",
    "ts": "time",
    "external ts": "time",
}
BREAK_BEFORE = {"X": "ts", "s": "cat", "t": "cat", "f": "cat", "i": "pid"}  # where Kineto begins an event's second line
_STEP = re.compile(r'("ProfilerStep#)(\d+)"')
_TIME = re.compile(r"(\d+)(\.\d+)?")
_ALL_BUT_EVENTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ONE = msgspec.json.Decoder(dict[str, msgspec.Raw])


def main() -> None:
    """Generate the file and print its path."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trace", type=Path, help="a trace of torch.profiler, .json or .json.gz")
    parser.add_argument("--events", type=int, default=1_000_000, help="at least so many (%(default)s)")
    parser.add_argument("--dir", type=Path, default=default_folder(), help="where to keep the file (%(default)s)")
    parser.add_argument("--plain", action="store_true", help=".json instead of .json.gz")
    arguments = parser.parse_args()
    try:
        print(scaled(arguments.trace, arguments.events, arguments.dir, plain=arguments.plain))
    except (OSError, EOFError, ValueError, zlib.error, msgspec.MsgspecError, NotScalableError) as error:
        sys.exit(f"{arguments.trace} cannot be scaled: {error}")


def default_folder() -> Path:
    """Return the folder for generated files if none is given."""
    return Path(tempfile.gettempdir()) / "gpulab-benchmarks"


class NotScalableError(Exception):
    """A trace whose events cannot be repeated."""


def scaled(source: Path, events: int, folder: Path, *, plain: bool = False) -> Path:
    """Return a trace with at least this many events generated from `source`, cached in `folder`."""
    packed = source.read_bytes()
    stem = source.name.removesuffix(".gz").removesuffix(".json")
    name = f"{stem}-{events}-{zlib.crc32(packed, LAYOUT):08x}.json" + ("" if plain else ".gz")
    target = folder / name
    if target.exists():
        return target
    document = _ALL_BUT_EVENTS.decode(gzip.decompress(packed) if packed.startswith(b"\x1f\x8b") else packed)
    if "traceEvents" not in document:
        raise NotScalableError("it has no events to repeat")
    pattern, once = _read(document["traceEvents"])
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / (name + ".part")
    with part.open("wb") as file:
        if plain:
            _write(document, pattern, once, events, file)
        else:
            # No name and no time in the header: the same source gives the same file.
            with gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as zipped:
                buffered = io.BufferedWriter(zipped, 2**20)
                _write(document, pattern, once, events, buffered)
                buffered.flush()
    return part.replace(target)


def _write(document: dict[str, msgspec.Raw], pattern: Pattern, once: list[Fields], events: int, file: BinaryIO) -> None:
    """The metadata before the events, the events so many times over, what stands once, the metadata after."""
    copies = -(-max(events - len(once), 1) // pattern.count)
    keys = list(document)
    at = keys.index("traceEvents")
    head = "".join(f"\n  {_quoted(key)}: {_text(document[key])}," for key in keys[:at])
    tail = "".join(f",\n  {_quoted(key)}: {_text(document[key])}" for key in keys[at + 1 :])
    file.write(f'\n{{{head}\n  "traceEvents": ['.encode())
    texts = chain.from_iterable(pattern.replica(number) for number in range(copies))
    file.write(next(texts)[1:].encode())  # no comma before the first event
    for text in texts:
        file.write(text.encode())
    for event in once:
        closing = Pattern(pattern.strides)
        closing.add(event)
        last = copies - 1 if "Record Window End" in event["name"] else 0
        file.write("".join(closing.replica(last)).encode())
    file.write(f"\n  ]{tail}\n}}\n".encode())


def _read(array: msgspec.Raw) -> tuple[Pattern, list[Fields]]:
    """The pattern of what is repeated, and the events that describe the whole file."""
    pattern, once = Pattern(), []
    for raw in msgspec.json.decode(array, type=list[msgspec.Raw]):
        event = {key: _text(value) for key, value in _ONE.decode(raw).items()}
        if event.get("ph") == '"M"' or event.get("cat") == '"Trace"' or _about_the_file(event.get("name", "")):
            once.append(event)
        else:
            pattern.add(event)
    if not pattern.count:
        raise NotScalableError("it has no events to repeat")
    pattern.measure()
    return pattern, once


def _about_the_file(name: str) -> bool:
    return name.startswith(('"Iteration Start', '"Record Window End'))


class Moment(NamedTuple):
    """From when to when events last, in whole us."""

    first: int
    last: int


class Pattern:
    """The text of events with places for the numbers that move on: `before[0] base[0] before[1] base[1] ... rest`."""

    def __init__(self, strides: dict[str, int] | None = None) -> None:
        self.count = 0
        self.strides = strides or {}  # how far each family of numbers moves on with each replica
        self._before: list[str] = []
        self._base: list[int] = []
        self._family: list[str] = []
        self._rest = ""
        self._seen: dict[str, Moment] = defaultdict(lambda: Moment(2**62, -(2**62)))

    def add(self, event: Fields) -> None:
        """One more event."""
        phase = event.get("ph", "").strip('"')
        self._rest += ",\n  {\n    "
        for number, (key, value) in enumerate(event.items()):
            newline = key in (BREAK_BEFORE.get(phase), "args")
            self._rest += ("" if number == 0 else ",\n    " if newline else ", ") + f"{_quoted(key)}: "
            if key == "args" and value.startswith("{"):
                self._arguments(value)
            elif key == "name" and (step := _STEP.fullmatch(value)):
                self._place("step", step[1], int(step[2]), '"')
            elif key == "ts":
                self._time(value, event)
            else:
                self._value(key, value)
        self._rest += "\n  }"
        self.count += 1

    def measure(self) -> None:
        """Set how far each family moves on: past all that it held."""
        self.strides = {family: seen.last - seen.first + 1 for family, seen in self._seen.items()}

    def replica(self, number: int) -> Iterator[str]:
        """The text of one replica, a part at a time; it begins with a comma."""
        base = np.array(self._base, np.int64)
        base += number * np.array([self.strides.get(family, 0) for family in self._family], np.int64)
        for start in range(0, len(base), AT_ONCE):
            numbers = map(str, base[start : start + AT_ONCE].tolist())
            yield "".join(chain.from_iterable(zip(self._before[start : start + AT_ONCE], numbers, strict=True)))
        yield self._rest

    def _arguments(self, text: str) -> None:
        arguments = {key: _text(value) for key, value in _ONE.decode(text).items()}
        self._rest += "{\n      " if arguments else "{"
        for number, (key, value) in enumerate(arguments.items()):
            self._rest += (", " if number else "") + f"{_quoted(key)}: "
            self._value(key, value)
        self._rest += "\n    }" if arguments else "}"

    def _time(self, text: str, event: Fields) -> None:
        if not (time := _TIME.fullmatch(text)):
            raise NotScalableError(f"an event has the time {text}, which is no plain number")
        start, fraction = int(time[1]), time[2] or ""
        if event.get("ph") == '"X"':  # other phases last no time, and may stand far from all the rest
            self._saw("time", start, start + int(float(event.get("dur", "0"))) + 1)
            self._place("time", "", start, fraction, seen=True)
        else:
            self._place("time", "", start, fraction, seen=True)

    def _value(self, key: str, text: str) -> None:
        family = FAMILIES.get(key)
        # 0 and numbers of 2**31 and more stand for "none"; an index counts from 0.
        lowest = 0 if family == "index" else 1
        if family is None or not text.isdigit() or not lowest <= int(text) < 2 ** (63 if family == "time" else 31):
            self._rest += text
        else:
            self._place(family, "", int(text), "", seen=family == "time")

    def _place(self, family: str, before: str, number: int, after: str, *, seen: bool = False) -> None:
        if not seen:
            self._saw(family, number, number)
        self._before.append(self._rest + before)
        self._base.append(number)
        self._family.append(family)
        self._rest = after

    def _saw(self, family: str, first: int, last: int) -> None:
        known = self._seen[family]
        self._seen[family] = Moment(min(known.first, first), max(known.last, last))


def _text(raw: msgspec.Raw) -> str:
    """A value's text on one line; text within quotes cannot hold a line's end."""
    text = bytes(raw).decode()
    if "\n" not in text:
        return text
    return re.sub(r"\s*\n\s*", "", re.sub(r",\s*\n\s*", ", ", text))


def _quoted(key: str) -> str:
    return msgspec.json.encode(key).decode()


if __name__ == "__main__":
    main()
