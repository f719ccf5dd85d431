"""Front ends: which output they can show, and widget messages while the kernel runs a cell."""

from __future__ import annotations

import os
import sys
from typing import Any


def allow_messages_while_busy(comm: Any) -> None:
    """Process messages of a widget while the main thread runs a cell, without side effects on the cell.

    ipykernel 7.4 sends replies to the subshell of the last message, which is the busy one: let the front end choose.
    ipykernel 7 also fires IPython's execution events for every message, in the thread of the message: matplotlib would
    flush, and lose, the figure that the cell is drawing (ipykernel issue 1564).
    """
    if comm is None or not hasattr(comm, "_msg_callback"):
        return
    comm._reply_subshell_for = lambda data, default: default
    comm.handle_msg = lambda message: comm._msg_callback(message)


WIDGET, HTML, NOTHING = "widget", "html", "nothing"


def front_end() -> str:
    """Return the live output that the front end of the running cell supports: WIDGET, HTML (redrawn), or NOTHING.

    JupyterLab and Notebook 7 send a cell ID; a console does not, and cannot redraw an output. nbconvert, papermill and
    nbval allow no input, so nobody is watching. In Colab and VS Code a widget needs the network and does not update
    while a cell runs. Kaggle's page has no anywidget, and `pip install` in a session does not change that.
    """
    module = sys.modules.get("ipykernel.kernelbase")
    if module is None or not module.Kernel.initialized():
        return NOTHING
    kernel = module.Kernel.instance()
    request = kernel.get_parent() if hasattr(kernel, "get_parent") else {}
    if request.get("content", {}).get("allow_stdin") is False:
        return NOTHING
    in_vs_code = "VSCODE_PID" in os.environ or "__vsc_ipynb_file__" in (getattr(kernel.shell, "user_ns", None) or {})
    if in_vs_code or "google.colab" in sys.modules or "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
        return HTML
    return WIDGET if "cellId" in request.get("metadata", {}) else NOTHING


def shows_widgets() -> bool:
    """Whether the running cell was sent interactively, from a front end that shows widgets offline."""
    return front_end() == WIDGET
