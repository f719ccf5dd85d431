"""Display of a monitor at the end of a cell; registered by name, so that views are imported on first use only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from IPython.core.interactiveshell import InteractiveShell

if TYPE_CHECKING:
    from gpulab.views.live.monitor import Monitor

_MODULE = "gpulab.views.live.monitor"


def install(shell: InteractiveShell) -> None:
    """Display a monitor at the end of a cell as a live panel; its report later replaces the panel."""

    def display(monitor: Monitor) -> None:
        from gpulab.magics.monitor_output import show

        if monitor.run is not None:
            raise NotImplementedError  # IPython then displays it like any other object
        if not show(shell, monitor):
            shell.display_pub.publish(data={"text/plain": repr(monitor)}, metadata={})

    if shell.display_formatter is not None:
        shell.display_formatter.ipython_display_formatter.for_type_by_name(_MODULE, "Monitor", display)


def remove(shell: InteractiveShell) -> None:
    """Undo `install` and stop a running monitor."""
    if shell.display_formatter is not None:
        formatter = shell.display_formatter.ipython_display_formatter
        formatter.deferred_printers.pop((_MODULE, "Monitor"), None)
        if _MODULE in sys.modules:
            formatter.pop(sys.modules[_MODULE].Monitor, None)
    if _MODULE in sys.modules:
        from gpulab.views.live.monitor import current

        if (running := current()) is not None:
            running.stop(quietly=True)
