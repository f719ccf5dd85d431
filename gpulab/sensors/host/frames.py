"""Which line of the user's code a thread is at: frames in, one short text out."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
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


def called(innermost: FrameType | None) -> str | None:
    """What the user's innermost line called in a library: "torch.serialization.save", "PIL.Image.open".

    None where that line runs by itself, or calls only what is built in. Wrappers that libraries put around their own
    functions are looked through.
    """
    mine = next(users_frames(innermost), None)
    if mine is None:
        return None
    within = []
    frame = innermost
    while frame is not None and frame is not mine:
        within.append(frame)
        frame = frame.f_back
    theirs = [frame for frame in reversed(within) if _is_librarys(frame)]
    told = next((frame for frame in theirs if not _is_private(frame.f_code)), theirs[0] if theirs else None)
    return None if told is None else f"{_module(told)}.{_qualified(told.f_code, _module(told))}"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _is_librarys(frame: FrameType) -> bool:
    """Neither one of gpulab's hooks nor generated code, as the __init__ of a dataclass."""
    return _module(frame).partition(".")[0] != "gpulab" and not frame.f_code.co_filename.startswith(
        ("<string", "<eval")
    )


def _is_private(code: CodeType) -> bool:
    """A wrapper inside a function, or a name with one underscore before it."""
    return bool(code.co_flags & inspect.CO_NESTED) or (code.co_name[:1] == "_" and code.co_name[:2] != "__")


@functools.lru_cache(maxsize=4096)
def _qualified(code: CodeType, module: str) -> str:
    """The function with its class. Before Python 3.11 code does not know its class, so the module is searched."""
    known: str | None = getattr(code, "co_qualname", None)
    if known is not None:
        return known
    classes = (value for value in vars(sys.modules.get(module, sys)).values() if isinstance(value, type))
    owner = next((own for own in classes if getattr(vars(own).get(code.co_name), "__code__", None) is code), None)
    return f"{owner.__name__}.{code.co_name}" if owner else code.co_name


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
