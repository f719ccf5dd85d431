"""The kernel side of an interactive timeline: it answers the front end and receives its selection.

It is a widget model without a view. The script starts with the model, finds the static picture in the notebook by its
key, and draws the interactive timeline in its place. So the notebook stores only the picture: a saved, mailed or
reopened notebook shows it, and it stays where no script can run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import anywidget
import traitlets

from gpulab.views.front_end import allow_messages_while_busy
from gpulab.views.timeline.queries.requests import Question, answer_question
from gpulab.views.timeline.script import bundle_script, stylesheet

if TYPE_CHECKING:
    from gpulab.views.timeline.scene.scene import Scene


class TimelineModel(anywidget.AnyWidget):
    """Answers the queries of a front end about a scene; `widget.js` sends {"kind": "ask", ...}."""

    _esm = bundle_script("widget.js")
    _css = stylesheet()
    key = traitlets.Unicode(help="id of the HTML element in which the timeline is drawn").tag(sync=True)
    offered = traitlets.Bool(help="whether a button opens the timeline").tag(sync=True)
    go: traitlets.List[int] = traitlets.List(
        help="window requested by Python: start and end in ns, and the number of the request"
    ).tag(sync=True)
    selected = traitlets.Dict(default_value=None, allow_none=True, help="the selected box").tag(sync=True)
    window: traitlets.List[float] = traitlets.List(help="the visible window: start and end in ns").tag(sync=True)

    def __init__(self, scene: Callable[[], Scene], key: str, *, offered: bool = False) -> None:
        super().__init__(key=key, offered=offered)
        self._scene = cache(scene)  # computed at the first query
        self.on_msg(self._receive)
        allow_messages_while_busy(self.comm)

    def __repr__(self) -> str:
        return "gpulab timeline"

    def close(self) -> None:
        """Close the model, and the layout that ipywidgets made for it."""
        self.layout.close()
        super().close()

    def _receive(self, _: object, content: Question, __: object) -> None:
        """Answer a message of the front end; called in any thread, also while a cell runs."""
        if content.get("kind") == "ask":
            reply, buffers = answer_question(self._scene, content)
            self.send(reply, buffers)
