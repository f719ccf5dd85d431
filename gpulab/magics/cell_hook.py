"""The transparent half of %%gpuprofile: IPython runs the user's cell itself, and gpulab starts before and stops after.

A cell magic that runs its body, by `run_cell` or `exec`, changes what the body means: top-level await, tracebacks,
`inspect.getsource`, error status, `;` and history all differ a little. So the magic line is turned into a comment
before IPython compiles the cell, and recording hangs on the events before and after it. The ordinary cell magic
remains for help, for mistakes in the line, and for cells inside other magics.
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

from gpulab.magics.arguments import Request

if TYPE_CHECKING:
    from gpulab.magics.commands import GpuProfileMagics

_MAGIC = re.compile(r"%%gpuprofile(?=\s|$)(.*)", re.DOTALL)


class CellHook:
    """Strips the line, arms before the cell and reports after it."""

    # Tells IPython not to use this transformer to decide whether a cell typed in a terminal is complete: a cell
    # magic there ends with an empty line, and without its first line it would end with the first statement.
    has_side_effects = True

    def __init__(self, shell: InteractiveShell, magics: GpuProfileMagics) -> None:
        self._magics = magics
        self._shell = shell

    def install(self) -> None:
        """Hang on the shell."""
        self._shell.input_transformers_cleanup.insert(0, self)
        self._shell.events.register("pre_run_cell", self.before)
        self._shell.events.register("post_run_cell", self.after)

    def remove(self) -> None:
        """Let the shell go."""
        if self in self._shell.input_transformers_cleanup:
            self._shell.input_transformers_cleanup.remove(self)
            self._shell.events.unregister("pre_run_cell", self.before)
            self._shell.events.unregister("post_run_cell", self.after)

    def __call__(self, lines: list[str]) -> list[str]:
        """The cell without its magic line. Pure: IPython may ask more than once, and need not run what it asked for."""
        if _is_help_alone(lines):  # IPython refuses a cell magic without a cell
            return ["%gpuprofile --help\n"]
        at = _first_line(lines)
        if at is None or self._request(lines) is None or _inside_a_cell():
            return lines
        body = lines[at + 1 :]
        first = body[_first_line(body) or 0]
        if first.startswith("%%"):  # another cell magic, which must come first
            return body
        # A comment in its place keeps the line numbers of tracebacks those on the screen, and its indentation lets
        # IPython dedent an indented cell as it always does.
        indent = first[: len(first) - len(first.lstrip())]
        return [f"{indent}# {lines[at].strip()}\n", *["\n"] * at, *body]

    def before(self, info: Any) -> None:
        """A cell is about to run: record it if it asks for that."""
        if _inside_a_cell(skip=1):
            return
        self._magics.cell_now = info.raw_cell
        self._magics.abandon()  # a cell whose end was never announced
        request = self._request((info.raw_cell or "").splitlines(keepends=True))
        if request is not None and _compiles(getattr(info, "transformed_cell", None)):
            self._magics.begin(request)

    def after(self, result: Any) -> None:
        """A cell has ended, in whatever way."""
        if _inside_a_cell():
            return
        self._magics.cell_now = None
        # An awaiting cell that was cancelled leaves no result.
        error = asyncio.CancelledError() if result is None else result.error_before_exec or result.error_in_exec
        try:
            self._magics.end(error)
        except KeyboardInterrupt:  # it came in the very moment the cell ended by itself
            self._magics.end(error)

    def _request(self, lines: list[str]) -> Request | None:
        """What the cell's magic line asks for; None where there is none to serve here."""
        at = _first_line(lines)
        match = _MAGIC.match(lines[at]) if at is not None else None
        if at is None or match is None or match[1].rstrip().endswith("?") or _first_line(lines[at + 1 :]) is None:
            return None
        if threading.current_thread() is not threading.main_thread():
            return None
        try:
            request = self._magics.request(match[1])
        except UsageError:
            return None  # the ordinary magic raises it, and the cell does not run
        return None if request.help else request


def _is_help_alone(lines: list[str]) -> bool:
    """Whether the cell is `%%gpuprofile --help` and nothing else."""
    match = _MAGIC.fullmatch("".join(lines).strip())
    return match is not None and match[1].split() in (["--help"], ["-h"])


def _first_line(lines: list[str]) -> int | None:
    """The index of the first line that is not blank."""
    return next((at for at, line in enumerate(lines) if line.strip()), None)


def _inside_a_cell(skip: int = 0) -> bool:
    """Whether the caller is, on its own stack, inside the run of a cell; `skip` for runs that only just begin.

    Looking at the stack needs no counter, and so survives cells whose end, or beginning, IPython did not announce.
    """
    frame, runs = sys._getframe(1), 0
    while frame is not None:
        runs += frame.f_code is InteractiveShell.run_cell_async.__code__
        frame = frame.f_back  # type: ignore[assignment]
    return runs > skip


def _compiles(code: str | None) -> bool:
    """Whether the cell will run at all: one that is not Python gets its SyntaxError and no profile."""
    if code is None:  # an IPython that does not tell
        return True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the user's own compilation will warn
        try:
            ast.parse(code)
        except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
            return False
    return True
