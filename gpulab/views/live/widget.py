"""The live panel as a widget: Python sends what it says, `widget.js` draws it."""

from __future__ import annotations

from pathlib import Path

import anywidget
import traitlets


class LivePanel(anywidget.AnyWidget):
    """A running session at a glance; `widget.js` sends {"kind": "hello"}, {"kind": "stop"} and {"kind": "gone"}."""

    _esm = Path(__file__).with_suffix(".js")
    _css = Path(__file__).with_suffix(".css")
    now = traitlets.Dict(help="a Glance, as data").tag(sync=True)
    key = traitlets.Unicode(help="names the place this is shown at").tag(sync=True)
    hello = traitlets.Bool(help="whether the front end should show that it is heard while a cell runs").tag(sync=True)
    stops = traitlets.Unicode("the cell", help="what the button stops").tag(sync=True)
    stop = traitlets.Unicode(help='"" not known yet, "button", "words", "stopping" or "done"').tag(sync=True)

    def __repr__(self) -> str:
        return "gpulab live panel"
