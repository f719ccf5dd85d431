"""Cache of an analysis that needs nothing but the run, for as long as the run lives."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from gpulab.run import Run

T = TypeVar("T")


def cached_by_run(analyse: Callable[[Run], T]) -> Callable[[Run], T]:
    """Compute the result of this function once per run: runs never change."""

    @wraps(analyse)
    def cached(run: Run) -> T:
        if analyse not in run.results:
            run.results[analyse] = analyse(run)
        result: T = run.results[analyse]
        return result

    return cached
