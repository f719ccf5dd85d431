"""The choices widget, kernel side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets


class ChoicesModel(anywidget.AnyWidget):
    """The choices and the chosen one; `widget.js` sets `chosen`, and shows `status` below them."""

    _esm = Path(__file__).with_suffix(".js")
    key = traitlets.Unicode(help="key of the element that shows the buttons").tag(sync=True)
    question = traitlets.Unicode(help="the question").tag(sync=True)
    choices: traitlets.List[list[str]] = traitlets.List(help="pairs of letter and text").tag(sync=True)
    chosen = traitlets.Unicode(help="the chosen letter, or ''").tag(sync=True)

    status = traitlets.Unicode(help="the line below the choices; '' is a standard one").tag(sync=True)

    def __init__(
        self,
        key: str,
        question: str,
        choices: Sequence[tuple[str, str]],
        chosen: str,
        on_choice: Callable[[str], str],
        status: str = "",
    ) -> None:
        rows = [list(choice) for choice in choices]
        super().__init__(key=key, question=question, choices=rows, chosen=chosen, status=status)
        self._on_choice = on_choice
        self.observe(self._answer, names="chosen")

    def _answer(self, change: Any) -> None:
        self.status = self._on_choice(change["new"])
