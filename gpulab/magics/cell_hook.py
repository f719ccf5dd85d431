"""%%gpuprofile without side effects: IPython runs the user's cell itself; gpulab starts before it and stops after it.

A cell magic that runs its body by `run_cell` or `exec` changes the meaning of the body: top-level await, tracebacks,
`inspect.getsource`, error status, `;` and history all differ a little. Therefore the magic line is turned into a
comment before IPython compiles the cell, and recording starts and stops on the events before and after the cell. The
ordinary cell magic remains for help, for errors in the line, and for cells inside other magics.
"""

from __future__ import annotations

import ast
import asyncio
import re
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from gpulab.magics.arguments import ProfileOptions
from gpulab.magics.ipython_versions import transformed_cell

if TYPE_CHECKING:
    from gpulab.magics.commands import GpuProfileMagics

MISPLACED = "%gpuprofile"  # IPython looks for a line magic of this name if %%gpuprofile is below other code
_MAGIC = re.compile(r"%%gpuprofile(?=\s|$)(.*)", re.DOTALL)


class CellHook:
    """Removes the magic line, starts recording before the cell and reports after it."""

    # Tells IPython not to use this transformer to decide whether a cell typed in a terminal is complete. There a cell
    # magic ends with an empty line; without its first line, the cell would end with the first statement.
    has_side_effects = True

    def __init__(self, shell: InteractiveShell, magics: GpuProfileMagics) -> None:
        self._magics = magics
        self._shell = shell

    def install(self) -> None:
        """Register the transformer and the cell events with the shell."""
        self._shell.input_transformers_cleanup.insert(0, self)
        self._shell.events.register("pre_run_cell", self.before)
        self._shell.events.register("post_run_cell", self.after)
        self._shell.events.register("post_run_cell", self.after_interrupt)

    def remove(self) -> None:
        """Undo `install`."""
        if self in self._shell.input_transformers_cleanup:
            self._shell.input_transformers_cleanup.remove(self)
            self._shell.events.unregister("pre_run_cell", self.before)
            self._shell.events.unregister("post_run_cell", self.after)
            self._shell.events.unregister("post_run_cell", self.after_interrupt)

    def __call__(self, lines: list[str]) -> list[str]:
        """Remove the magic line from a cell. Pure: IPython may call this several times, and may never run the cell."""
        if (line := _without_cell(lines)) is not None:
            return [line]
        index = _magic_line(lines)
        if index is None or self._request(lines) is None or _inside_a_cell():
            return lines
        body = lines[index + 1 :]
        first = body[_first_line(body) or 0]
        if first.startswith("%%"):  # another cell magic, which must come first
            return body
        # A comment in place of the magic keeps the line numbers of tracebacks; its indentation lets IPython dedent an
        # indented cell as usual.
        indent = first[: len(first) - len(first.lstrip())]
        return [f"{indent}# {lines[index].strip()}\n", *["\n"] * index, *body]

    def misplaced(self, line: str) -> None:
        """Explain why %%gpuprofile below other code profiles nothing: the line magic MISPLACED."""
        self._magics.request(line)  # a mistake in the line is reported first
        magic = f"%%gpuprofile {line.strip()}".rstrip()
        raise UsageError(f"%%gpuprofile must be the first line of the cell: move `{magic}` above the other code")

    def before(self, info: Any) -> None:
        """Start recording if the cell that is about to run asks for it."""
        if _inside_a_cell(skip=1):
            return
        self._magics.running_cell = info.raw_cell
        self._magics.abandon()  # IPython did not announce the end of the previous cell
        lines = (info.raw_cell or "").splitlines(keepends=True)
        request = self._request(lines)
        if request is None:
            return
        body = "".join(lines[(_magic_line(lines) or 0) + 1 :])
        if _compiles(transformed_cell(self._shell, info, body)):
            self._magics.begin(request, body)

    def after(self, result: Any) -> None:
        """Stop recording: a cell has ended, with or without an error."""
        try:
            try:
                self._end(result)
            finally:  # nothing is left to do, unless a signal handler raised before the recording stopped
                self._end(result)
        except KeyboardInterrupt:  # it arrived just as the cell ended by itself
            pass

    def _end(self, result: Any) -> None:
        if _inside_a_cell():
            return
        self._magics.running_cell = None
        # A cancelled cell with top-level await has no result.
        error = asyncio.CancelledError() if result is None else result.error_before_exec or result.error_in_exec
        self._magics.end(error)

    def after_interrupt(self, result: Any) -> None:
        """Stop recording if a signal handler raised before the first statement of `after`."""
        if self._magics.is_recording:
            self.after(result)

    def _request(self, lines: list[str]) -> ProfileOptions | None:
        """Options of the cell's magic line; None if there is no line to handle here."""
        index = _magic_line(lines)
        match = _MAGIC.match(lines[index]) if index is not None else None
        if index is None or match is None or match[1].rstrip().endswith("?") or _first_line(lines[index + 1 :]) is None:
            return None
        if threading.current_thread() is not threading.main_thread():
            return None
        try:
            request = self._magics.request(match[1])
        except UsageError:
            return None  # the ordinary magic raises it, and the cell does not run
        return None if request.help else request


def _without_cell(lines: list[str]) -> str | None:
    """The line magic for a %%gpuprofile without a cell, which IPython refuses with a misleading hint; else None."""
    match = _MAGIC.fullmatch("".join(lines).strip())
    if match is None or match[1].rstrip().endswith("?"):
        return None
    if match[1].split() in (["--help"], ["-h"]):
        return "%gpuprofile --help\n"
    return "%gpuprofile\n" if "\n" not in match[1] else None


def _magic_line(lines: list[str]) -> int | None:
    """Index of the first line that is neither blank nor a comment: the magic may have comments above it."""
    code = (index for index, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#"))
    return next(code, None)


def _first_line(lines: list[str]) -> int | None:
    """Index of the first line that is not blank."""
    return next((index for index, line in enumerate(lines) if line.strip()), None)


def _inside_a_cell(skip: int = 0) -> bool:
    """Whether the caller runs inside a cell, judged by its stack; `skip`: number of runs that have only just begun.

    A counter would break on cells whose beginning or end IPython does not announce; the stack does not.
    """
    frame, runs = sys._getframe(1), 0
    while frame is not None:
        runs += frame.f_code is InteractiveShell.run_cell_async.__code__
        frame = frame.f_back  # type: ignore[assignment]
    return runs > skip


def _compiles(code: str | None) -> bool:
    """Whether the cell compiles. A cell with a SyntaxError is not profiled."""
    if code is None:
        return False
    # Not with catch_warnings(), which forgets the warnings that were shown: they would be shown again.
    function: Any = warnings.showwarning
    warnings.showwarning = _show_no_warning
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return False
    finally:
        warnings.showwarning = function
    return True


def _show_no_warning(*_: Any, **__: Any) -> None:
    """Show nothing: IPython compiles the cell again, and warns then."""
