"""Workload: a small real training loop, what is wrong with it on purpose, and its healthy twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training loop of 2 to 5 s on two CPU cores.

    `run(device="cpu", steps=N)` trains and gives the loss of every step; both arguments have defaults. The loop is
    ordinary PyTorch, seeded, and knows nothing of gpulab: what records it stands around it.
    """

    name: str
    about: str
    run: Callable[..., list[float]]
    rule: str | None  # the rule that should name what was planted; None: nothing was
    twin: str | None = None  # the same training with the fix applied; None where there is no flaw to take out
    mends: bool = True  # the twin bears the fix that the finding prints, not another remedy
    batch: int = 1  # samples a step, where a twin's step does more of them: only the ratio of the two matters
    needs_gpu: bool = False  # the fault is one of a GPU: on a CPU there is nothing to find
