"""Answers the questions of the timeline's front end; question and answer are plain data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gpulab.errors import GpulabError, problem_text

if TYPE_CHECKING:
    from gpulab.views.timeline.scene.scene import Scene

Question = Mapping[str, Any]
_MAX_SEARCH_LENGTH = 200  # longer search texts are cut
_MAX_LEVEL = 40


def answer_question(scene: Callable[[], Scene], question: Question) -> tuple[dict[str, Any], list[bytes]]:
    """Return the answer to a question as a small dict and a list of buffers; a failed question gives an error message.

    The dict stays small because ipykernel inspects every item of it; the content is in the buffer. `form` is the type
    of the buffer: "tile", "json", "nothing", or "error" with the message in `text`.
    """
    reply: dict[str, Any] = {"kind": "answer", "id": str(question.get("id", ""))[:64]}
    try:
        # "ready" only checks that there is a kernel, and must not compute the scene.
        content = None if question.get("what") == "ready" else _content(scene(), question)
    except Exception as problem:  # the front end shows every error, and the log of the kernel stays clean
        return {**reply, "form": "error", "text": problem_text(problem)}, []
    if content is None:
        return {**reply, "form": "nothing"}, []
    if isinstance(content, bytes):
        return {**reply, "form": "tile"}, [content]
    return {**reply, "form": "json"}, [json.dumps(content, allow_nan=False).encode()]


def _content(scene: Scene, question: Question) -> bytes | dict[str, Any] | None:
    query = question.get("what")
    if query == "header":
        return scene.header()
    if query == "tile":
        level, index = _integer(question, "level"), _integer(question, "index")
        return scene.tile(level, index) if 0 <= level <= _MAX_LEVEL and 0 <= index < 2**level else None
    if query == "search":
        return scene.search(str(question.get("text", ""))[:_MAX_SEARCH_LENGTH])
    if query == "brush":
        first, last = sorted((_integer(question, "start_ns"), _integer(question, "end_ns")))
        return scene.brush(max(first, 0), min(max(last, 0), scene.span_ns))
    if query == "card":
        return scene.card(_integer(question, "row"), _integer(question, "box"))
    raise GpulabError(
        f"The timeline does not know the query {str(query)[:40]!r}.",
        why="the page was made by another version of gpulab than the one in the kernel",
        fix="reload the page, then run the cell again",
    )


def _integer(question: Question, name: str) -> int:
    value = question.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) > 2**62:
        raise GpulabError(
            f"The {name} of a timeline query is not a number.",
            why=f"it is {str(value)[:40]!r}",
            fix="reload the page, then run the cell again",
        )
    return round(value)
