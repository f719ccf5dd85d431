"""The line of the user's code that a thread is executing, as short text."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import sysconfig
from pathlib import PurePath
from types import CodeType, FrameType

# Matched by module name, wherever installed: a development build of torch lies outside site-packages.
_LIBRARIES = ("gpulab", "torch", "torchvision", "IPython", "ipykernel", "debugpy")
# Training code shipped with gpulab: in the lessons, this is the code that the user profiles.
_LESSON_CODE = ("gpulab.workloads", "gpulab.lessons")
_CELL = re.compile(r"[/\\]ipykernel_\d+[/\\]\d+\.py$|^<ipython-input-\d+")
_TYPED = re.compile(r"<(ipython-input|python-input|stdin)")
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")
PATH_SEPARATOR = " > "
_MOST_DEPTH = 30  # functions of a path; recursive code is cut
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")  # separate frames before Python 3.12


def user_line(innermost: FrameType | None) -> str | None:
    """The user's innermost line, as "function (file.py:12)", "cell line 12" or "file.py line 12".

    None if no frame of the user's code is on the stack.
    """
    frames = user_frames(innermost)
    if not frames:
        return None
    frame = frames[0]
    line = frame.f_lineno
    # A comprehension is shown under the name of the function around it, which is clearer than <listcomp>.
    function = next((outer for outer in frames if outer.f_code.co_name not in _COMPREHENSIONS), None)
    file = _display_file(frame.f_code.co_filename)
    if function is None or function.f_code.co_name == "<module>":
        return f"{file} line {line}"
    separator = " line " if file == "cell" else ":"
    return f"{function.f_code.co_name} ({file}{separator}{line})"


def called_function(innermost: FrameType | None) -> str | None:
    """The library function that the user's innermost line called: "torch.serialization.save", "PIL.Image.open".

    None if that line calls nothing, or built-in functions only. Wrappers that libraries put around their own functions
    are skipped.
    """
    frames = _library_frames(innermost)
    callee = next((frame for frame in frames if not _is_private(frame.f_code)), frames[0] if frames else None)
    return None if callee is None else f"{_module(callee)}.{_qualified(callee.f_code, _module(callee))}"


def library_path(innermost: FrameType | None) -> str | None:
    """The public functions of libraries within the user's innermost line, from the outermost: "Trainer.fit > Loop.run".

    PyTorch's own functions are left out, except the first one within the last function of another library. None if
    that line calls PyTorch only, or nothing.
    """
    frames = [frame for frame in _library_frames(innermost) if not _is_private(frame.f_code) and not _imports(frame)]
    others = [index for index, frame in enumerate(frames) if not _is_torch(frame)]
    if not others:
        return None
    functions = [frames[index] for index in others[:_MOST_DEPTH]] + frames[others[-1] + 1 : others[-1] + 2]
    return PATH_SEPARATOR.join([_short_name(frame) for frame in functions])


def _library_frames(innermost: FrameType | None) -> list[FrameType]:
    """The frames of libraries within the user's innermost line, from the outermost; none without a user's line."""
    inner_frames = []
    frame = innermost
    while frame is not None and not is_user_frame(frame):
        inner_frames.append(frame)
        frame = frame.f_back
    return [] if frame is None else [frame for frame in reversed(inner_frames) if _is_library_frame(frame)]


def _short_name(frame: FrameType) -> str:
    """The class and the method, or the module and the function."""
    qualified_name = _qualified(frame.f_code, _module(frame))
    return qualified_name if "." in qualified_name else f"{_module(frame).rpartition('.')[2]}.{qualified_name}"


def _imports(frame: FrameType) -> bool:
    """Whether a frame belongs to an import: paths of nested imports are long, and say nothing about a loop."""
    return frame.f_code.co_name == "<module>" or frame.f_code.co_filename.startswith("<frozen ")


def _is_torch(frame: FrameType) -> bool:
    return _module(frame).partition(".")[0] == "torch"


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _is_library_frame(frame: FrameType) -> bool:
    """Neither one of gpulab's hooks nor generated code such as the __init__ of a dataclass."""
    return _module(frame).partition(".")[0] != "gpulab" and not frame.f_code.co_filename.startswith(
        ("<string", "<eval")
    )


def _is_private(code: CodeType) -> bool:
    """A wrapper defined inside a function, or a name with one leading underscore."""
    return bool(code.co_flags & inspect.CO_NESTED) or (code.co_name[:1] == "_" and code.co_name[:2] != "__")


@functools.lru_cache(maxsize=4096)
def _qualified(code: CodeType, module: str) -> str:
    """Qualified name of the function. Before Python 3.11, code does not know its class, so the module is searched."""
    qualified_name: str | None = getattr(code, "co_qualname", None)
    if qualified_name is not None:
        return qualified_name
    classes = (value for value in vars(sys.modules.get(module, sys)).values() if isinstance(value, type))
    owner = next((cls for cls in classes if getattr(vars(cls).get(code.co_name), "__code__", None) is code), None)
    return f"{owner.__name__}.{code.co_name}" if owner else code.co_name


def user_frames(innermost: FrameType | None) -> list[FrameType]:
    """The frames of the user's own code, from the innermost outward.

    No generator: Python drops an exception that a signal handler raises while an unfinished generator is destroyed.
    """
    frames = []
    frame = innermost
    while frame is not None:
        if is_user_frame(frame):
            frames.append(frame)
        frame = frame.f_back
    return frames


def is_user_frame(frame: FrameType) -> bool:
    """Whether a frame runs the user's own code."""
    # f_lineno is None for an instant while a frame is being created.
    return frame.f_lineno is not None and _is_users_code(frame.f_code, str(frame.f_globals.get("__name__")))


def _is_users_code(code: CodeType, module: str) -> bool:
    if code.co_filename.startswith("<"):
        # <frozen ...>, <string> of dataclasses, <eval_with_key> of torch.fx: generated code, unless typed by a person.
        return bool(_TYPED.match(code.co_filename)) or (code.co_name == "<module>" and module == "__main__")
    if module.startswith(_LESSON_CODE):
        return True
    return module.partition(".")[0] not in _LIBRARIES and not _is_installed(code.co_filename)


@functools.lru_cache(maxsize=4096)
def _is_installed(filename: str) -> bool:
    """Whether the file belongs to Python or an installed package."""
    if _CELL.search(filename):
        return False
    return bool(_INSTALLED.search(filename)) or filename.startswith(_stdlib())


@functools.lru_cache(maxsize=1)
def _stdlib() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths["stdlib"], paths["platstdlib"], str(PurePath(os.__file__).parent)}
    return tuple(folder + separator for folder in folders for separator in ("/", "\\"))


@functools.lru_cache(maxsize=4096)
def _display_file(filename: str) -> str:
    """Display name of the file: without folders, or `cell`."""
    return "cell" if _CELL.search(filename) else re.split(r"[/\\]", filename)[-1]
