"""Workload: a small real training loop, its planted fault, and its fixed twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training loop of 2 to 5 s on two CPU cores.

    `run(device="cpu", steps=N)` trains and returns the loss of every step; both arguments have defaults. The loop is
    ordinary seeded PyTorch without any gpulab calls; recording happens around it.
    """

    name: str
    about: str
    run: Callable[..., list[float]]
    rule: str | None  # the rule that should find the planted fault; None: no fault
    twin: str | None = None  # the same training with the fix applied; None if there is no fault
    twin_applies_fix: bool = True  # the twin applies the fix that the finding prints, not another one
    batch: int = 1  # samples per step, if they differ in the twin: only the ratio matters
    needs_gpu: bool = False  # the fault exists on a GPU only
