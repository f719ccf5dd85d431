"""The engine that is always there: the standard library's json, three times as slow, and as lenient as is wanted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from gpulab.trace.reading.batches import AS_TEXT, HEADER_KEYS, NAN, Batch, Header, How, Times, batch_of

REFUSED = (ValueError, RecursionError, ArithmeticError)  # ArithmeticError: Decimal's, for an absurd exponent


def _integer(digits: str) -> Any:
    """Old Pythons take minutes for an integer of a million digits."""
    return int(digits) if len(digits) < 40 else NAN


def _strictly(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


_QUICK = json.JSONDecoder(parse_int=_integer, parse_constant=_strictly)
_EXACT = json.JSONDecoder(parse_int=_integer, parse_constant=_strictly, parse_float=Decimal)
LENIENT = json.JSONDecoder(parse_int=_integer, parse_constant=lambda _: NAN, parse_float=Decimal, strict=False)


def inner(array: bytes | memoryview, how: How) -> Batch:
    """The events in a JSON array. Raises one of REFUSED where anything about it is not as it should be."""
    return _batch(_decoded(array, how), how)


def ending(text: bytes | memoryview, how: How, bare: bool) -> tuple[Batch, Header]:
    """The events and the metadata of a last piece. Raises one of REFUSED."""
    found = _decoded(b"".join((b'{"traceEvents":[', text, b"}" if bare else b"")), how)
    return _batch(found["traceEvents"], how), _header(found)


def header(text: bytes) -> Header:
    """The metadata in a JSON object. Raises one of REFUSED."""
    found = _decoded(text, How())
    if not isinstance(found, dict):
        raise ValueError("the metadata are no object")
    return _header(found)


def told(events: Sequence[Any], keys: tuple[str, ...]) -> list[list[Any] | None]:
    """The values of these keys, one list each; see `Told`."""
    args = [event.get("args") for event in events]
    plain = [each if isinstance(each, dict) else {} for each in args]
    return [_values(plain, key) if any(key in each for each in plain) else None for key in keys]


def _values(args: Sequence[dict[str, Any]], key: str) -> list[Any]:
    if key in AS_TEXT:
        return [json.dumps(each[key], default=str).encode() if key in each else None for each in args]
    return [each.get(key) for each in args]


def _decoded(text: bytes | memoryview, how: How) -> Any:
    return (_EXACT if how.times is Times.TEXT else _QUICK).decode(str(text, "utf-8"))


def _batch(values: Any, how: How) -> Batch:
    if not isinstance(values, list) or not all(isinstance(value, dict) and "ph" in value for value in values):
        raise ValueError("not all of these are events")
    batch = batch_of(values, told)
    if how.times is not Times.TEXT:
        kinds = {type(event[key]) for event in batch.work for key in ("ts", "dur") if key in event}
        if not kinds <= ({int} if how.times is Times.WHOLE else {int, float}):
            raise ValueError("not all times are of the type expected")
    return batch._replace(times=how.times)


def _header(found: Any) -> Header:
    return {key: found.get(key) for key in HEADER_KEYS}
