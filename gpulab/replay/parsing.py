"""From what people type to rewrites: "workers=6, pin_memory, amp=bf16"."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from gpulab.errors import RunError
from gpulab.replay.rewrite import Chosen, Rewrite, Value
from gpulab.replay.rewrites.catalogue import BY_NAME, REWRITES


def chosen(text: str) -> tuple[Chosen, ...]:
    """The rewrites a line names, parted by commas or spaces, in the order in which they are made.

    Raises RunError for a name that is none, a value that does not fit, or a rewrite named twice.
    """
    asked: dict[str, Chosen] = {}
    for word in re.split(r"[,\s]+", re.sub(r"\s*=\s*", "=", text.strip())):
        if not word:
            continue
        name, equals, given = word.partition("=")
        rewrite = _named(_plain(name))
        if rewrite.name in asked:
            raise RunError(
                f"{rewrite.name} is asked for twice.", why=f"in {text!r}", fix="name each change once, with its value"
            )
        asked[rewrite.name] = Chosen(rewrite, _value(rewrite, given if equals else None))
    return in_order(asked.values())


def is_change(word: str) -> bool:
    """Whether a word names a rewrite, with a value or without."""
    return _plain(word.partition("=")[0].rstrip(",")) in BY_NAME


def in_order(some: Iterable[Chosen]) -> tuple[Chosen, ...]:
    """The same rewrites in the order of the catalogue."""
    place = {rewrite.name: number for number, rewrite in enumerate(REWRITES)}
    return tuple(sorted(some, key=lambda each: place[each.rewrite.name]))


def _plain(name: str) -> str:
    return name.replace("-", "_").lower()


def _named(name: str) -> Rewrite:
    if name in BY_NAME:
        return BY_NAME[name]
    close = difflib.get_close_matches(name, BY_NAME, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    raise RunError(
        f"{name!r} is no change that can be predicted.",
        why=f"the changes are: {', '.join(BY_NAME)}",
        fix=f"{meant}%gpuwhatif --help explains each",
    )


def _value(rewrite: Rewrite, given: str | None) -> Value:
    if given is None:
        if rewrite.usual is None:
            raise RunError(f"{rewrite.name} needs a value.", why=f"it takes {rewrite.takes}", fix=f"{rewrite.name}=...")
        return rewrite.usual
    if rewrite.parse is None:
        raise RunError(f"{rewrite.name} takes no value.", why=f"{given!r} was given", fix=f"write {rewrite.name} alone")
    try:
        return rewrite.parse(given)
    except ValueError as error:
        raise RunError(f"{rewrite.name}={given} cannot be.", why=str(error), fix=f"give it {rewrite.takes}") from error
