"""What a front end can show, and the way of a widget's messages into a kernel that is busy with a cell."""

from __future__ import annotations

import os
import sys
from typing import Any


def reach_during_a_cell(comm: Any) -> None:
    """Let messages of the front end arrive while the main thread is busy, without disturbing what it does.

    ipykernel 7.4 sends an answer to the shell that spoke last, which is the busy one: leave the choice to the front
    end. And ipykernel 7 fires IPython's execution events for every message, in the message's thread: matplotlib would
    flush, and lose, the figure that the cell is just drawing (ipykernel issue 1564).
    """
    if comm is None or not hasattr(comm, "_msg_callback"):
        return
    comm._reply_subshell_for = lambda data, default: default
    comm.handle_msg = lambda message: comm._msg_callback(message)


WIDGET, HTML, NOTHING = "widget", "html", "nothing"


def front_end() -> str:
    """What the front end of the cell that runs now can show while it runs: WIDGET, HTML sent again, or NOTHING.

    JupyterLab and Notebook 7 say which cell they run; a console does not, and cannot redraw an output. nbconvert,
    papermill and nbval take no input: nobody is watching. In Colab and VS Code a widget needs the network, and does
    not move while a cell runs.
    """
    module = sys.modules.get("ipykernel.kernelbase")
    if module is None or not module.Kernel.initialized():
        return NOTHING
    kernel = module.Kernel.instance()
    asked = kernel.get_parent() if hasattr(kernel, "get_parent") else {}
    if asked.get("content", {}).get("allow_stdin") is False:
        return NOTHING
    in_code = "VSCODE_PID" in os.environ or "__vsc_ipynb_file__" in (getattr(kernel.shell, "user_ns", None) or {})
    if in_code or "google.colab" in sys.modules:
        return HTML
    return WIDGET if "cellId" in asked.get("metadata", {}) else NOTHING


def shows_widgets() -> bool:
    """Whether the cell that runs now was sent by somebody who looks, in a front end that shows widgets offline."""
    return front_end() == WIDGET
