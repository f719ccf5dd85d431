"""Magics: %%gpuprofile, %gpumonitor, %gpureport, %gpucompare ... Only this package imports IPython."""

from __future__ import annotations

import sys
from collections.abc import Callable
from weakref import WeakKeyDictionary

from IPython.core.interactiveshell import InteractiveShell

from gpulab.capture.spool.recovery import recoverable
from gpulab.magics import monitor_display
from gpulab.magics.cell_hook import MISPLACED, CellHook
from gpulab.magics.commands import GpuProfileMagics
from gpulab.magics.completion import complete_line
from gpulab.magics.ipython_versions import line_matcher

Matcher = Callable[..., object]
_hooks: WeakKeyDictionary[InteractiveShell, tuple[GpuProfileMagics, CellHook, Matcher]] = WeakKeyDictionary()


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Add the magics to a shell; a second call changes nothing."""
    if shell in _hooks:
        return
    magics = GpuProfileMagics(shell)
    hook = CellHook(shell, magics)
    shell.register_magics(magics)
    shell.magics_manager.register_function(hook.misplaced, "line", MISPLACED)
    hook.install()
    monitor_display.install(shell)
    matcher = line_matcher(shell, complete_line)
    if shell.Completer is not None:
        shell.Completer.custom_matchers.append(matcher)
    _hooks[shell] = magics, hook, matcher
    if line := recoverable():
        shell.display_pub.publish(data={"text/plain": line}, metadata={})
    if "torch" in sys.modules:  # otherwise the first profiled cell imports torch, and pays for both imports
        from gpulab.capture.profiler import warm_up

        warm_up()


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Remove everything that `load_ipython_extension` added."""
    if shell not in _hooks:
        return
    magics, hook, matcher = _hooks.pop(shell)
    magics.abandon()
    monitor_display.remove(shell)
    if (panels := sys.modules.get("gpulab.magics.panels")) is not None:
        panels.forget_page()
    hook.remove()
    if shell.Completer is not None and matcher in shell.Completer.custom_matchers:
        shell.Completer.custom_matchers.remove(matcher)
    configurables: list[object] = shell.configurables  # type: ignore[assignment]
    configurables.remove(magics)
    shell.magics_manager.registry.pop(type(magics).__name__, None)
    shell.magics_manager.magics["line"].pop(MISPLACED, None)
    for kind, names in magics.magics.items():
        for name in names:
            shell.magics_manager.magics[kind].pop(name, None)
