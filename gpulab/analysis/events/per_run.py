"""Caches of analyses of a run, for as long as the run lives."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from gpulab.run import Run

T = TypeVar("T")
S = TypeVar("S")
L = TypeVar("L")


def cached_by_run(analyse: Callable[[Run], T]) -> Callable[[Run], T]:
    """Compute the result of this function once per run: runs never change."""

    @wraps(analyse)
    def cached(run: Run) -> T:
        if analyse not in run.results:
            run.results[analyse] = analyse(run)
        result: T = run.results[analyse]
        return result

    return cached


def cached_by_ledger(analyse: Callable[[Run, S, L], T]) -> Callable[[Run, S, L], T]:
    """Keep the latest result of this function of a run, its steps and its ledger, which never change."""

    @wraps(analyse)
    def cached(run: Run, steps: S, ledger: L) -> T:
        latest: tuple[S, L, T] | None = run.results.get(analyse)
        if latest is None or latest[0] is not steps or latest[1] is not ledger:
            latest = run.results[analyse] = steps, ledger, analyse(run, steps, ledger)
        return latest[2]

    return cached
