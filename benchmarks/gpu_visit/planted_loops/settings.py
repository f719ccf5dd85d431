"""What a planted loop is, and the settings it runs with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


def _nothing() -> None:
    """Do nothing at the end of a step."""


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """How a loop runs: `fixed` applies the fix, `tiny` is for a CPU, `step_done` is called at the end of each step."""

    device: str = "cuda"
    steps: int = 40
    fixed: bool = False
    tiny: bool = False
    can_compile: bool = False  # torch.compile has a compiler here
    step_done: Callable[[], None] = _nothing

    def size(self, full: int, tiny: int) -> int:
        """A size, or a tiny one."""
        return tiny if self.tiny else full

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of loops whose precision is not the subject."""
        return torch.float32 if self.device == "cpu" else torch.bfloat16


@dataclass(frozen=True, kw_only=True)
class PlantedLoop:
    """A training loop with one planted cause and its fix.

    `rules` are the findings that name the cause. `work` is how many samples a step has after the fix, as a multiple of
    those before.
    """

    name: str
    about: str
    fix: str
    rules: tuple[str, ...]
    run: Callable[[LoopSettings], None]
    work: float = 1.0
    steps: int = 40
