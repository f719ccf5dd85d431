"""run.json, both ways: what a run says of itself beside its tables, which schema it has, the checksums."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_type_hints

import msgspec
import numpy as np

from gpulab.run import FIELDS, Run
from gpulab.store.format import MAJOR, META, MINOR, UPGRADE, Schema, refusal

_FORMAT = "gpulab run"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Document:
    """What run.json tells: the fields of the run that are not tables, and those that this version does not know."""

    schema: Schema
    fields: Mapping[str, Any]
    unknown: tuple[str, ...]
    sha256: Mapping[str, str]  # of each table's part


class _Head(msgspec.Struct):
    format: str
    schema: tuple[int, int]


class _Body(msgspec.Struct):
    run: dict[str, msgspec.Raw]
    sha256: dict[str, str]


def encoded(run: Run, sha256: Mapping[str, str]) -> bytes:
    """The run.json of a run whose tables have these checksums. Raises TypeError or ValueError for what has no place."""
    plain = {field.name: getattr(run, field.name) for field in dataclasses.fields(run) if field.name not in FIELDS}
    document = {"format": _FORMAT, "schema": [MAJOR, MINOR], "sha256": sha256, "run": plain}
    builtins = _as_text(msgspec.to_builtins(document, enc_hook=_encodable))
    text = msgspec.json.format(msgspec.json.encode(builtins), indent=1)
    _decoded(text)  # a fact that is no text, a count that is no number: refused now, rather than when it is opened
    return text


def decoded(text: bytes) -> Document:
    """What a run.json tells. Raises StoreError where it is damaged, of something else, or too new."""
    try:
        return _decoded(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise refusal(f"its {META} is damaged ({error})") from error


def _decoded(text: bytes) -> Document:
    head = msgspec.json.decode(text, type=_Head)
    _check(head)
    body = msgspec.json.decode(text, type=_Body)
    fields, unknown = _fields(body.run)
    return Document(schema=head.schema, fields=fields, unknown=unknown, sha256=body.sha256)


def _check(head: _Head) -> None:
    if head.format != _FORMAT:
        raise refusal(f"it holds a {head.format!r}", "give a file that gpulab.save(...) wrote")
    if head.schema[0] > MAJOR:
        newer = f"it was written by a newer gpulab (file schema {head.schema[0]}, this one reads {MAJOR})"
        raise refusal(newer, UPGRADE)
    if head.schema < (1, 0):
        raise ValueError(f"there is no schema {head.schema[0]}.{head.schema[1]}")


def _fields(told: Mapping[str, msgspec.Raw]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The values of the fields that are known, and the names of the others."""
    hints = get_type_hints(Run)
    known = {field.name: field for field in dataclasses.fields(Run) if field.name not in FIELDS}
    for name, field in known.items():
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and name not in told:
            raise ValueError(f"it does not tell {name}")
    values = {}
    for name in known.keys() & told.keys():
        try:
            values[name] = msgspec.json.decode(told[name], type=hints[name])
        except msgspec.MsgspecError as error:
            raise ValueError(f"{name}: {error}") from error
    return values, tuple(sorted(told.keys() - known.keys()))


def _encodable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a run holds a {type(value).__name__}, which has no place in a file")


def _as_text(value: Any) -> Any:
    """The same with text only: the name of a file or a thread may hold bytes that are none."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_as_text(key): _as_text(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_text(each) for each in value]
    return value
