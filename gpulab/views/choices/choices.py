"""The choices of a question as radio buttons while the kernel lives; as text everywhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from uuid import uuid4

from gpulab.views.front_end import shows_widgets


def choice_buttons(
    html: str,
    question: str,
    choices: Sequence[tuple[str, str]],
    chosen: str,
    on_choice: Callable[[str], str],
    status: str = "",
) -> str:
    """Return HTML that becomes radio buttons; the HTML unchanged if the front end shows no widgets.

    `choices`: pairs of letter and text; `chosen`: the letter chosen before, or "". `on_choice` receives the letter, and
    returns the line below the buttons. `status`: that line before a choice; "" is a standard one.
    """
    if not shows_widgets():
        return html
    try:
        from gpulab.views.choices.widget import ChoicesModel
    except ImportError:
        return html
    key = uuid4().hex
    # ipywidgets keeps a reference while the kernel lives.
    ChoicesModel(key, question, choices, chosen, on_choice, status)
    return f'<div data-gpulab-choice="{escape(key)}">{html}</div>'
