"""The timeline's side in a living kernel: it answers the front end, and knows what is selected there.

It is a widget without a view. Its script is started by the model alone, finds the static picture in the notebook by
its key, and draws the living timeline in its place. So the notebook holds the picture and nothing else: what is saved,
mailed or reopened shows it, and where no script starts it simply stays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import anywidget
import traitlets

from gpulab.views.front_end import reach_during_a_cell
from gpulab.views.timeline.queries.answers import Question, answer
from gpulab.views.timeline.script import script, style

if TYPE_CHECKING:
    from gpulab.views.timeline.scene.scene import Scene


class TimelineModel(anywidget.AnyWidget):
    """A scene that a front end can ask; `widget.js` sends {"kind": "ask", ...}."""

    _esm = script("widget.js")
    _css = style()
    key = traitlets.Unicode(help="names the place that the timeline is drawn in").tag(sync=True)
    offered = traitlets.Bool(help="whether a button stands there until it is pressed").tag(sync=True)
    go: traitlets.List[int] = traitlets.List(
        help="where Python wants to look: start, end, and how often it has wanted"
    ).tag(sync=True)
    selected = traitlets.Dict(default_value=None, allow_none=True, help="what was clicked").tag(sync=True)
    window: traitlets.List[float] = traitlets.List(help="what is in view: start and end, in ns").tag(sync=True)

    def __init__(self, scene: Callable[[], Scene], key: str, *, offered: bool = False) -> None:
        super().__init__(key=key, offered=offered)
        self._scene = cache(scene)  # worked out when it is first asked about
        self.on_msg(self._told)
        reach_during_a_cell(self.comm)

    def __repr__(self) -> str:
        return "gpulab timeline"

    def close(self) -> None:
        """Close the model, and the layout that ipywidgets made for it."""
        self.layout.close()
        super().close()

    def _told(self, _: object, content: Question, __: object) -> None:
        """The front end speaks, in whatever thread; it may do so while a cell runs."""
        if content.get("kind") == "ask":
            told, buffers = answer(self._scene, content)
            self.send(told, buffers)
