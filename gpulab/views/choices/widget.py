"""The choices widget, kernel side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import anywidget
import traitlets


class ChoicesModel(anywidget.AnyWidget):
    """The choices and the chosen one; `widget.js` sets `chosen`."""

    _esm = Path(__file__).with_suffix(".js")
    key = traitlets.Unicode(help="key of the element that shows the buttons").tag(sync=True)
    question = traitlets.Unicode(help="the question").tag(sync=True)
    choices: traitlets.List[list[str]] = traitlets.List(help="pairs of letter and text").tag(sync=True)
    chosen = traitlets.Unicode(help="the chosen letter, or ''").tag(sync=True)

    def __init__(
        self, key: str, question: str, choices: Sequence[tuple[str, str]], chosen: str, on_choice: Callable[[str], None]
    ) -> None:
        super().__init__(key=key, question=question, choices=[list(each) for each in choices], chosen=chosen)
        self.observe(lambda change: on_choice(change["new"]), names="chosen")
