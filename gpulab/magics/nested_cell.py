"""Running code for a magic that stands where IPython cannot run the cell itself."""

from __future__ import annotations

import asyncio
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell


def nested(shell: InteractiveShell, cell: str, around: str | None) -> BaseException | None:
    """Run a cell inside a cell, silent about its error, which is returned for the caller to raise once.

    `around` is the outer cell as the user sees it: where the inner one is its end, line numbers are made to fit.
    """
    if _awaits(shell, cell):
        raise UsageError("top-level await works only where %%gpuprofile is the first line of the cell")
    interactivity = shell.ast_node_interactivity
    # Within the class this would be a method; on the instance it hides that method until it is deleted again.
    shell.showtraceback = shell.showsyntaxerror = _nothing  # type: ignore[method-assign]
    try:
        if DisplayHook.semicolon_at_end_of_expression(cell):
            shell.ast_node_interactivity = "none"
        result = shell.run_cell(_lined_up(cell, around), store_history=False)
    finally:
        del shell.showtraceback, shell.showsyntaxerror
        shell.ast_node_interactivity = interactivity
    error: BaseException | None = result.error_before_exec or result.error_in_exec
    return error.with_traceback(_from_user_code(error)) if error is not None else None


def execute(shell: InteractiveShell, code: str, local_ns: dict[str, Any] | None) -> Any:
    """Run one statement where it stands; gives its value, if it has one."""
    __tracebackhide__ = True
    source = shell.transform_cell(code)
    name = shell.compile.cache(source, shell.execution_count)
    try:
        program = compile(source.strip(), name, "eval")
    except SyntaxError:
        program = compile(source, name, "exec")
    return eval(program, shell.user_ns, local_ns)


def _nothing(*_: Any, **__: Any) -> None:
    """Show nothing."""


def _awaits(shell: InteractiveShell, cell: str) -> bool:
    """Whether the cell needs an event loop, while one is running already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return bool(shell.should_run_async(cell, transformed_cell=shell.transform_cell(cell)))


def _lined_up(cell: str, around: str | None) -> str:
    """The cell below as many comment lines as stand above it on the screen."""
    if around is None or not around.rstrip().endswith(cell.rstrip()) or cell.lstrip().startswith("%%"):
        return cell
    above = around.rstrip()[: -len(cell.rstrip())].count("\n")
    return "#\n" * above + cell


def _from_user_code(error: BaseException) -> Any:
    """The traceback from the user's first own frame on: what ran that frame is of no interest."""
    step = error.__traceback__
    while step is not None and step.tb_frame.f_code.co_filename.startswith(_IPYTHON):
        step = step.tb_next
    return step or error.__traceback__


_IPYTHON = __import__("IPython").__path__[0]
