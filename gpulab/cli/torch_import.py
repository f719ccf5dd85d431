"""Call a function as soon as the program has imported PyTorch, or another module.

A recording must not start earlier: it imports PyTorch and NumPy, which read settings such as OMP_NUM_THREADS once, when
they are imported, and the program may set them in its first lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

TORCH = "torch"


def call_after_torch_import(function: Callable[[], None]) -> None:
    """Call `function` when the import of torch ends; now, if it is imported already."""
    call_after_import(TORCH, function)


def call_after_import(module: str, function: Callable[[], None]) -> None:
    """Call `function` when the import of a module ends; now, if it is imported already."""
    if module in sys.modules:
        function()
    else:
        sys.meta_path.insert(0, _CallingFinder(module, function))


class _CallingFinder(MetaPathFinder):
    """Finds a module as the other finders do, but with a loader that calls the function once it is imported.

    It stays until then: packages look for torch, with importlib.util.find_spec, long before anything imports it.
    """

    def __init__(self, module: str, function: Callable[[], None]) -> None:
        self._module, self._function = module, function

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        # Those before it have been asked; this one may stand before another of its kind.
        start = sys.meta_path.index(self) + 1 if self in sys.meta_path else 0
        others = [finder for finder in sys.meta_path[start:] if hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, self._imported)
        return spec

    def _imported(self) -> None:
        if self in sys.meta_path:  # a spec that was found earlier may be executed twice
            sys.meta_path.remove(self)
            self._function()


class _CallingLoader(Loader):
    """A loader that leaves the module as the usual one would, and then calls a function."""

    def __init__(self, loader: Loader, function: Callable[[], None]) -> None:
        self._loader, self._function = loader, function

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._function()

    def __getattr__(self, name: str) -> Any:  # get_source and others, which the import system may ask for
        return getattr(self._loader, name)
