"""Run a script or a module in this process, as `python` would: its arguments, its path, its `__main__`."""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import io
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import InspectLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

from gpulab.errors import GpulabError

_PACKAGE = str(Path(__file__).resolve().parents[1])
_HOOKS = str(Path(_PACKAGE, "capture"))


class ProgramNotFoundError(GpulabError):
    """There is no such script or module."""


@dataclass(frozen=True)
class Program:
    """What `python` is to run: a script, or a module with `-m`."""

    name: str  # path of the script, or name of the module
    arguments: tuple[str, ...]
    is_module: bool = False

    @property
    def title(self) -> str:
        """A short name, for files: "train" for train.py."""
        return self.name.rpartition(".")[2] if self.is_module else Path(self.name).stem

    @property
    def command(self) -> str:
        """What follows the options of a command, quoted for a shell: "train.py --epochs 3"."""
        return shlex.join([*(["-m"] if self.is_module else []), self.name, *self.arguments])

    def run(self, changed: CodeType | None = None) -> None:
        """Run it as `__main__`. Raises what it raises; ProgramNotFoundError if there is no such program.

        `changed`: code to run in place of the program's.
        """
        if self.is_module:
            self._run_module(changed)
        else:
            self._run_script(changed)

    def source(self) -> tuple[str, bytes]:
        """Return the path of its file, and the content. Raises ProgramNotFoundError if it cannot be read."""
        if not self.is_module:
            path = Path(self.name).absolute()
            return str(path), _content(path, self.name)
        origin = _file_of_module(self.name)
        return origin, _content(Path(origin), origin)

    def _run_script(self, changed: CodeType | None) -> None:
        path = Path(self.name).absolute()
        # Bytes, so that the declared encoding counts; not with the __future__ imports of this module.
        code = changed or compile(_content(path, self.name), str(path), "exec", dont_inherit=True)
        sys.argv = [self.name, *self.arguments]
        if not getattr(sys.flags, "safe_path", False):  # Python 3.11
            sys.path[0] = str(path.resolve().parent)
        main = _new_main()
        main.__file__ = str(path)
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", str(path))
        main.__dict__["__cached__"] = None
        _execute(code, main)

    def _run_module(self, changed: CodeType | None) -> None:
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = str(Path.cwd())
        sys.argv = ["-m", *self.arguments]  # what `python -m` shows while it imports the packages above the module
        spec, code = _find_module(self.name)
        sys.argv[0] = spec.origin or self.name
        main = _new_main()
        main.__file__ = spec.origin
        main.__loader__, main.__spec__, main.__package__ = spec.loader, spec, spec.parent
        main.__dict__["__cached__"] = spec.cached
        _execute(changed or code, main)


def program_of(script: Sequence[str], module: Sequence[str] | None) -> Program:
    """Return the program of a command line: `-m MODULE ARGUMENTS`, or `SCRIPT ARGUMENTS`."""
    if module:
        return Program(module[0], tuple(module[1:]), is_module=True)
    if not script:
        raise ProgramNotFoundError(
            "There is no program to run.",
            why="neither a script nor -m MODULE was given",
            fix="gpulab run train.py, or gpulab run -m package.train",
        )
    return Program(script[0], tuple(script[1:]))


def _content(path: Path, name: str) -> bytes:
    try:
        with io.open_code(str(path)) as file:
            content: bytes = file.read()
    except OSError as problem:
        raise ProgramNotFoundError(
            f"The script {name!r} cannot be read.",
            why=problem.strerror or type(problem).__name__,
            fix="give the path of a Python script, or a module: -m MODULE",
        ) from None
    return content


def without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the program's first frame on, without gpulab's hooks; None if nothing is left."""
    first = trace
    while first is not None and _is_in(first, _PACKAGE, "<frozen runpy>"):
        first = first.tb_next
    entries = []
    while first is not None:
        entries.append(first)
        first = first.tb_next
    rest = None
    for entry in reversed(entries):
        if not _is_in(entry, _HOOKS):
            rest = TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return rest


def _is_in(entry: TracebackType, *folders: str) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(folders)


def _new_main() -> ModuleType:
    """Return an empty module as sys.modules["__main__"]: classes of the program can then be pickled."""
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    return main


def _execute(code: CodeType, main: ModuleType) -> None:
    exec(code, main.__dict__)


def _file_of_module(name: str) -> str:
    """Return the file of a module that `python -m` would run, without importing the packages above it."""
    path, spec = [str(Path.cwd()), *sys.path], None
    for part in _with_packages(name):
        spec = importlib.machinery.PathFinder.find_spec(part, path)
        if spec is None:
            raise _no_module(name, f"No module named {part!r}")
        path = list(spec.submodule_search_locations or ())
    if spec is not None and spec.submodule_search_locations is not None:
        return _file_of_module(f"{name}.__main__")
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise _no_module(name, "it is not a Python file")
    return spec.origin


def _with_packages(name: str) -> list[str]:
    """Return "a", "a.b", "a.b.c" for "a.b.c"."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def _find_module(name: str) -> tuple[importlib.machinery.ModuleSpec, CodeType]:
    """Return spec and code of a module; of a package, those of its `__main__`. Raises GpulabError."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as problem:
        raise _no_module(name, str(problem)) from None
    if spec is not None and spec.submodule_search_locations is not None:
        return _find_module(f"{name}.__main__")
    code = spec.loader.get_code(name) if spec is not None and isinstance(spec.loader, InspectLoader) else None
    if spec is None or code is None:
        raise _no_module(name, "it does not exist, or it has no Python code")
    return spec, code


def _no_module(name: str, why: str) -> ProgramNotFoundError:
    return ProgramNotFoundError(
        f"The module {name!r} cannot be run.", why=why, fix="check the name; python -m must be able to run it"
    )
