"""The side of the choices that lives in the kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import anywidget
import traitlets


class ChoicesModel(anywidget.AnyWidget):
    """What can be chosen and what is; `widget.js` sets `chosen`."""

    _esm = Path(__file__).with_suffix(".js")
    key = traitlets.Unicode(help="names the place that the buttons are drawn in").tag(sync=True)
    ask = traitlets.Unicode(help="the question").tag(sync=True)
    choices: traitlets.List[list[str]] = traitlets.List(help="letter and text of each").tag(sync=True)
    chosen = traitlets.Unicode(help="the letter that was chosen, or nothing").tag(sync=True)

    def __init__(
        self, key: str, ask: str, choices: Sequence[tuple[str, str]], chosen: str, told: Callable[[str], None]
    ) -> None:
        super().__init__(key=key, ask=ask, choices=[list(each) for each in choices], chosen=chosen)
        self.observe(lambda change: told(change["new"]), names="chosen")
