"""Parse what a user types ("workers=6, pin_memory, amp=bf16") into rewrites."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Protocol, TypeVar

from gpulab.errors import RunError
from gpulab.replay.rewrite import Change, Value
from gpulab.replay.rewrites.catalogue import BY_NAME, REWRITES


class TypedChange(Protocol):
    """What a user can type: a kind of change of a run, or of a job."""

    @property
    def name(self) -> str:
        """Return the name that users type."""

    @property
    def default(self) -> Value | None:
        """Return the default value; None: a value is required."""

    @property
    def value_help(self) -> str:
        """Return what its value is."""

    @property
    def parse(self) -> Callable[[str], Value] | None:
        """Return the parser of its value; None if it takes none."""


Kind = TypeVar("Kind", bound=TypedChange)


def parse_changes(text: str) -> tuple[Change, ...]:
    """Parse rewrites separated by commas or spaces; return them in catalogue order.

    Raises RunError for an unknown name, an invalid value, or a rewrite that is named twice.
    """
    return in_catalogue_order(Change(rewrite, value) for rewrite, value in parse_values(text, BY_NAME))


def parse_values(text: str, by_name: Mapping[str, Kind]) -> list[tuple[Kind, Value]]:
    """Parse names of changes, with or without values; return each with its value, in the order of `by_name`.

    Raises RunError for an unknown name, an invalid value, or a change that is named twice.
    """
    values: dict[str, Value] = {}
    for word in re.split(r"[,\s]+", re.sub(r"\s*=\s*", "=", text.strip())):
        if not word:
            continue
        name, equals, typed = word.partition("=")
        rewrite = _lookup(_normalise(name), by_name)
        if rewrite.name in values:
            raise RunError(
                f"{rewrite.name} appears twice.", why=f"in {text!r}", fix="write each change once, with its value"
            )
        values[rewrite.name] = _value(rewrite, typed if equals else None)
    return [(rewrite, values[name]) for name, rewrite in by_name.items() if name in values]


def is_change(word: str, run_names: Container[str] = ()) -> bool:
    """Return whether a word names a rewrite or, because it has a value, is meant to; a run of this name comes first."""
    if word in run_names:
        return False
    name, equals, _ = word.partition("=")
    return bool(equals) or _normalise(name.rstrip(",")) in BY_NAME


def in_catalogue_order(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Sort rewrites into catalogue order."""
    position = {rewrite.name: number for number, rewrite in enumerate(REWRITES)}
    return tuple(sorted(changes, key=lambda change: position[change.rewrite.name]))


def _normalise(name: str) -> str:
    return name.replace("-", "_").lower()


def _lookup(name: str, by_name: Mapping[str, Kind]) -> Kind:
    if name in by_name:
        return by_name[name]
    close = difflib.get_close_matches(name, by_name, n=1)
    suggestion = f"did you mean {close[0]}? " if close else ""
    raise RunError(
        f"There is no change {name!r}.",
        why=f"the changes are: {', '.join(by_name)}",
        fix=f"{suggestion}%gpuwhatif --help describes each change",
    )


def _value(rewrite: TypedChange, typed: str | None) -> Value:
    if typed is None:
        if rewrite.default is None:
            raise RunError(
                f"{rewrite.name} needs a value.",
                why=f"the value is {rewrite.value_help}",
                fix=f"write {rewrite.name}=...",
            )
        return rewrite.default
    if rewrite.parse is None:
        raise RunError(
            f"{rewrite.name} takes no value.", why=f"it was set to {typed!r}", fix=f"write {rewrite.name} alone"
        )
    try:
        return rewrite.parse(typed)
    except ValueError as error:
        raise RunError(
            f"Invalid value: {rewrite.name}={typed}.", why=str(error), fix=f"use {rewrite.value_help}"
        ) from error
