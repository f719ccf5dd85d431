"""The choices of a question as buttons to press, for as long as the kernel lives; as text everywhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from uuid import uuid4

from gpulab.views.front_end import shows_widgets


def choosable(html: str, ask: str, choices: Sequence[tuple[str, str]], chosen: str, told: Callable[[str], None]) -> str:
    """This HTML as a place that becomes radio buttons; the HTML alone where nobody looks or widgets are missing.

    `choices`: letters and texts; `chosen`: the letter that is chosen already, or "". `told` is given the letter.
    """
    if not shows_widgets():
        return html
    try:
        from gpulab.views.choices.widget import ChoicesModel
    except ImportError:
        return html
    key = uuid4().hex
    ChoicesModel(key, ask, choices, chosen, told)  # ipywidgets keeps it while the kernel lives
    return f'<div data-gpulab-choice="{escape(key)}">{html}</div>'
