"""A comparison shows itself: as the last expression of a cell, or printed."""

from __future__ import annotations

import importlib
from functools import cached_property
from typing import Any


class Displayed:
    """Base of the results of `compare`: they are shown like the view of %gpucompare."""

    @cached_property
    def _view(self) -> Any:
        # Views may import this package but not the reverse, so they are imported on demand.
        return importlib.import_module("gpulab.views.compare.comparison").comparison_view(self)

    def __repr__(self) -> str:
        return repr(self._view)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        bundle: dict[str, str] = self._view._repr_mimebundle_()
        return bundle
