"""Run code for a magic where IPython cannot run the cell itself."""

from __future__ import annotations

import asyncio
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from gpulab.magics.ipython_versions import ends_with_semicolon


def run_nested_cell(shell: InteractiveShell, cell: str, outer_cell: str | None) -> BaseException | None:
    """Run a cell inside a cell and return its error, not shown, for the caller to raise once.

    `around` is the outer cell as the user sees it. If it ends with the inner one, line numbers are aligned with it.
    """
    if _needs_event_loop(shell, cell):
        raise UsageError("top-level await works only if %%gpuprofile is the first line of the cell; move it there")
    interactivity = shell.ast_node_interactivity
    # On the instance, this hides the method of the class until it is deleted again.
    shell.showtraceback = shell.showsyntaxerror = _show_nothing  # type: ignore[method-assign]
    try:
        if ends_with_semicolon(cell):
            shell.ast_node_interactivity = "none"
        result = shell.run_cell(_align_lines(cell, outer_cell), store_history=False)
    finally:
        del shell.showtraceback, shell.showsyntaxerror
        shell.ast_node_interactivity = interactivity
    error: BaseException | None = result.error_before_exec or result.error_in_exec
    return error.with_traceback(_from_user_code(error)) if error is not None else None


def run_statement(shell: InteractiveShell, code: str, local_ns: dict[str, Any] | None) -> Any:
    """Run one statement in the user's namespace and return its value, if it has one."""
    __tracebackhide__ = True
    source = shell.transform_cell(code)
    name = shell.compile.cache(source, shell.execution_count)
    try:
        program = compile(source.strip(), name, "eval")
    except SyntaxError:
        program = compile(source, name, "exec")
    return eval(program, shell.user_ns, local_ns)


def _show_nothing(*_: Any, **__: Any) -> None:
    """Replacement for the shell's functions that show errors."""


def _needs_event_loop(shell: InteractiveShell, cell: str) -> bool:
    """Whether the cell uses top-level await while an event loop is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return bool(shell.should_run_async(cell, transformed_cell=shell.transform_cell(cell)))


def _align_lines(cell: str, around: str | None) -> str:
    """Prepend comment lines, so that the cell's line numbers match those of the outer cell."""
    if around is None or not around.rstrip().endswith(cell.rstrip()) or cell.lstrip().startswith("%%"):
        return cell
    above = around.rstrip()[: -len(cell.rstrip())].count("\n")
    return "#\n" * above + cell


def _from_user_code(error: BaseException) -> Any:
    """The error's traceback without IPython's frames at its beginning."""
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code.co_filename.startswith(_IPYTHON):
        entry = entry.tb_next
    return entry or error.__traceback__


_IPYTHON = __import__("IPython").__path__[0]
