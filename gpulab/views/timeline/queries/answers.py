"""What the front end of a timeline asks, answered: from a question as data to an answer as data, and no more."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gpulab.errors import GpulabError, problem_text

if TYPE_CHECKING:
    from gpulab.views.timeline.scene.scene import Scene

Question = Mapping[str, Any]
MOST_TEXT = 200  # characters of a search that are looked at
MOST_LEVEL = 40


def answer(scene: Callable[[], Scene], question: Question) -> tuple[dict[str, Any], list[bytes]]:
    """The answer to a question, and its bytes; a question that cannot be answered gives an error in words.

    The content travels beside the bytes and stays small, because ipykernel looks at every item of it. `form` says
    what the bytes are: "tile", "json", "nothing" or "error", whose words are in `text`.
    """
    told: dict[str, Any] = {"kind": "answer", "id": str(question.get("id", ""))[:64]}
    try:
        # Whether there is a kernel at all is asked first, and costs no scene.
        found = None if question.get("what") == "ready" else _found(scene(), question)
    except Exception as problem:  # whatever it is, the front end is told, and the log of the kernel is left alone
        return {**told, "form": "error", "text": problem_text(problem)}, []
    if found is None:
        return {**told, "form": "nothing"}, []
    if isinstance(found, bytes):
        return {**told, "form": "tile"}, [found]
    return {**told, "form": "json"}, [json.dumps(found, allow_nan=False).encode()]


def _found(scene: Scene, question: Question) -> bytes | dict[str, Any] | None:
    what = question.get("what")
    if what == "header":
        return scene.header()
    if what == "tile":
        level, index = _whole(question, "level"), _whole(question, "index")
        return scene.tile(level, index) if 0 <= level <= MOST_LEVEL and 0 <= index < 2**level else None
    if what == "search":
        return scene.search(str(question.get("text", ""))[:MOST_TEXT])
    if what == "brush":
        first, last = sorted((_whole(question, "start_ns"), _whole(question, "end_ns")))
        return scene.brush(max(first, 0), min(max(last, 0), scene.span_ns))
    if what == "card":
        return scene.card(_whole(question, "row"), _whole(question, "box"))
    raise GpulabError(
        f"The timeline was asked {str(what)[:40]!r}.",
        why="the page that asks is of another version of gpulab than the kernel",
        fix="reload the page, then run the cell again",
    )


def _whole(question: Question, name: str) -> int:
    value = question.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) > 2**62:
        raise GpulabError(
            f"The timeline was asked for a {name} that is no number.",
            why=f"it is {str(value)[:40]!r}",
            fix="reload the page, then run the cell again",
        )
    return round(value)
