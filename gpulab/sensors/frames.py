"""Which line of the user's code a thread is at: frames in, one short text out."""

from __future__ import annotations

import functools
import os
import re
import sysconfig
from collections.abc import Iterator
from pathlib import PurePath
from types import CodeType, FrameType

# Known by module name, wherever they are installed: a development build of torch lies outside site-packages.
_LIBRARIES = ("gpulab", "torch", "torchvision", "IPython", "ipykernel", "debugpy")
# Training code that happens to be shipped with gpulab: in its lessons this is what the user profiles.
_LESSON_CODE = ("gpulab.workloads", "gpulab.lessons")
_CELL = re.compile(r"[/\\]ipykernel_\d+[/\\]\d+\.py$|^<ipython-input-\d+")
_TYPED = re.compile(r"<(ipython-input|python-input|stdin)")
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")  # frames of their own before Python 3.12


def user_line(innermost: FrameType | None) -> str | None:
    """The innermost line that is the user's, as "function (file.py:12)", "cell line 12" or "file.py line 12".

    None where no frame of the user's is on the stack.
    """
    mine = users_frames(innermost)
    frame = next(mine, None)
    if frame is None:
        return None
    line = frame.f_lineno
    # A comprehension is part of the function it stands in: that name tells more than <listcomp>.
    named: FrameType | None = frame
    while named is not None and named.f_code.co_name in _COMPREHENSIONS:
        named = next(mine, None)
    where = _file(frame.f_code.co_filename)
    if named is None or named.f_code.co_name == "<module>":
        return f"{where} line {line}"
    separator = " line " if where == "cell" else ":"
    return f"{named.f_code.co_name} ({where}{separator}{line})"


def users_frames(innermost: FrameType | None) -> Iterator[FrameType]:
    """The frames of the user's own code, from the innermost outward."""
    frame = innermost
    while frame is not None:
        # f_lineno is None for an instant while a frame is being set up.
        if frame.f_lineno is not None and _is_users(frame.f_code, str(frame.f_globals.get("__name__"))):
            yield frame
        frame = frame.f_back


def _is_users(code: CodeType, module: str) -> bool:
    if code.co_filename.startswith("<"):
        # <frozen ...>, <string> of dataclasses, <eval_with_key> of torch.fx: generated, except what a person typed.
        return bool(_TYPED.match(code.co_filename)) or (code.co_name == "<module>" and module == "__main__")
    if module.startswith(_LESSON_CODE):
        return True
    return module.partition(".")[0] not in _LIBRARIES and not _is_installed(code.co_filename)


@functools.lru_cache(maxsize=4096)
def _is_installed(filename: str) -> bool:
    """Part of Python or of an installed package."""
    if _CELL.search(filename):
        return False
    return bool(_INSTALLED.search(filename)) or filename.startswith(_stdlib())


@functools.lru_cache(maxsize=1)
def _stdlib() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths["stdlib"], paths["platstdlib"], str(PurePath(os.__file__).parent)}
    return tuple(folder + separator for folder in folders for separator in ("/", "\\"))


@functools.lru_cache(maxsize=4096)
def _file(filename: str) -> str:
    """What a person calls the file: its name without folders, or `cell`."""
    return "cell" if _CELL.search(filename) else re.split(r"[/\\]", filename)[-1]
