"""Compile the parser of traces into wheels and editable installs; without a C compiler, gpulab reads them in Python."""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from textwrap import shorten
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SOURCES = Path("gpulab", "trace", "parser")
_FOLDER = Path("gpulab", "trace", "reading")  # of the compiled module
_MODULE = "_chunk_parser"
_LIMITED_API = "cp310-abi3"  # one build serves all later versions of Python; chunk_parser.c has the version, too


class CompiledParser(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled module to the wheel, or to the source tree if it is installed as editable."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; after a failure print one line, and build the wheel without the module."""
        root = Path(self.root)
        for earlier in (root / _FOLDER).glob(f"{_MODULE}.*[od]"):  # .so or .pyd of another source
            if version == "editable":
                earlier.unlink()
        self._temporary = tempfile.TemporaryDirectory(prefix="gpulab")
        folder = root / _FOLDER if version == "editable" else Path(self._temporary.name)
        problem = _problem_of_this_python() or _compile(root / _SOURCES, folder)
        if problem:
            self.app.display_info(f"gpulab is built without the compiled parser of traces: {problem}")
        elif version != "editable":
            (module,) = folder.iterdir()
            build_data["force_include"][str(module)] = (_FOLDER / module.name).as_posix()
            build_data["pure_python"] = False
            build_data["tag"] = f"{_LIMITED_API}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the compiled module after the wheel has been written."""
        self._temporary.cleanup()


def _problem_of_this_python() -> str:
    if os.environ.get("GPULAB_COMPILED") == "no":
        return "GPULAB_COMPILED is no"
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this Python has no limited API"
    return ""


def _compile(sources: Path, folder: Path) -> str:
    """Compile the module into the folder; the reason if that fails."""
    try:
        from setuptools import Distribution, Extension
        from setuptools.command.build_ext import build_ext
        from setuptools.errors import BaseError, CCompilerError
    except ImportError:
        return "setuptools is missing"
    options = [] if sys.platform == "win32" else ["-std=c99", "-O3", "-g0"]
    extension = Extension(_MODULE, [str(sources / "chunk_parser.c")], py_limited_api=True, extra_compile_args=options)
    command = build_ext(Distribution({"ext_modules": [extension]}))
    with tempfile.TemporaryDirectory() as objects:
        command.build_lib, command.build_temp = str(folder), objects
        command.ensure_finalized()
        try:
            command.run()
        except (BaseError, CCompilerError, OSError) as error:
            return shorten(f"{type(error).__name__}: {error}", 100)
    return ""
