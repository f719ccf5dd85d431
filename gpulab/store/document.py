"""run.json, both ways: the run without its tables, the schema version, the checksums."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_type_hints

import msgspec
import numpy as np

from gpulab.run import TABLE_FIELDS, Run
from gpulab.store.format import MAJOR, METADATA_PART, MINOR, UPGRADE, Schema, invalid_run_error

_FORMAT = "gpulab run"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Document:
    """Content of run.json: the fields of the run that are not tables, and the names of unknown ones."""

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


def encode_document(run: Run, sha256: Mapping[str, str]) -> bytes:
    """The run.json of a run with these checksums. Raises TypeError or ValueError for unsupported values."""
    values = {
        field.name: getattr(run, field.name) for field in dataclasses.fields(run) if field.name not in TABLE_FIELDS
    }
    document = {"format": _FORMAT, "schema": [MAJOR, MINOR], "sha256": sha256, "run": values}
    text = msgspec.json.format(encode_json(document), indent=1)
    _decoded(text)  # a fact that is not text or a count that is not a number fails now rather than when it is opened
    return text


def encode_json(value: Any) -> bytes:
    """Dataclasses, mappings and numbers as JSON. Raises TypeError for other values."""
    return msgspec.json.encode(_utf8_only(msgspec.to_builtins(value, enc_hook=_to_builtin)))


def decode_document(text: bytes) -> Document:
    """Read a run.json. Raises StoreError if it is damaged, of another format, or too new."""
    try:
        return _decoded(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise invalid_run_error(f"its {METADATA_PART} is damaged ({error})") from error


def _decoded(text: bytes) -> Document:
    head = msgspec.json.decode(text, type=_Head)
    _check_format(head)
    body = msgspec.json.decode(text, type=_Body)
    fields, unknown = _fields(body.run)
    return Document(schema=head.schema, fields=fields, unknown=unknown, sha256=body.sha256)


def _check_format(head: _Head) -> None:
    if head.format != _FORMAT:
        raise invalid_run_error(f"it contains a {head.format!r}", "use a file that gpulab.save(...) wrote")
    if head.schema[0] > MAJOR:
        newer = f"it was written by a newer gpulab (file schema {head.schema[0]}, this one reads {MAJOR})"
        raise invalid_run_error(newer, UPGRADE)
    if head.schema < (1, 0):
        raise ValueError(f"there is no schema {head.schema[0]}.{head.schema[1]}")


def _fields(stored: Mapping[str, msgspec.Raw]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Values of the known fields, and names of the others."""
    hints = get_type_hints(Run)
    run_fields = {field.name: field for field in dataclasses.fields(Run) if field.name not in TABLE_FIELDS}
    for name, field in run_fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in stored:
            raise ValueError(f"{name} is missing")
    values = {}
    for name in run_fields.keys() & stored.keys():
        try:
            values[name] = msgspec.json.decode(stored[name], type=hints[name])
        except msgspec.MsgspecError as error:
            raise ValueError(f"{name}: {error}") from error
    return values, tuple(sorted(stored.keys() - run_fields.keys()))


def _to_builtin(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"the run contains a {type(value).__name__}, which cannot be stored")


def _utf8_only(value: Any) -> Any:
    """The same value with valid UTF-8: names of files and threads may contain bytes that are not."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_utf8_only(key): _utf8_only(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_utf8_only(each) for each in value]
    return value
