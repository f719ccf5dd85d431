"""The live panel as a widget: Python sends the content, `widget.js` draws it."""

from __future__ import annotations

from pathlib import Path

import anywidget
import traitlets


class LivePanel(anywidget.AnyWidget):
    """The live panel of a session. `widget.js` sends {"kind": "hello"}, {"kind": "stop"} and {"kind": "gone"}."""

    _esm = Path(__file__).with_suffix(".js")
    _css = Path(__file__).with_suffix(".css")
    now = traitlets.Dict(help="the current content: `Glance.data()`").tag(sync=True)
    key = traitlets.Unicode(help="id of the display slot that shows the panel").tag(sync=True)
    hello = traitlets.Bool(help="whether the front end should test if its messages arrive while a cell runs").tag(
        sync=True
    )
    stops = traitlets.Unicode("the cell", help="the object of the Stop button's label").tag(sync=True)
    stop = traitlets.Unicode(help='"" (not known yet), "button", "words" (a hint), "stopping" or "done"').tag(sync=True)

    def __repr__(self) -> str:
        return "gpulab live panel"
