"""The ordinary training loop, whose parts the probes replace."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from tests.chaos.program import Log

Loop = Callable[..., Any]  # of the log, the loader, the module and the optimizer
LOOPS: dict[str, Loop] = {}
SAMPLES, FEATURES, BATCH = 40, 4, 4


class Oddity(Exception):  # noqa: N818  (a user's name)
    """Raised by odd objects."""


class Interruption(BaseException):
    """A BaseException of the user's own."""


def fresh(error: BaseException | type[BaseException]) -> BaseException:
    """Return a new exception like this one: one that is raised twice would keep the frames of the first time."""
    return error() if isinstance(error, type) else type(error)(*error.args)


def samples() -> list[torch.Tensor]:
    """The data of all datasets."""
    generator = torch.Generator().manual_seed(1)
    return list(torch.randn(SAMPLES, FEATURES, generator=generator))


def first_tensor(batch: Any) -> torch.Tensor:
    """Return the first tensor of a batch, or a constant one."""
    if isinstance(batch, torch.Tensor):
        return batch if batch.dim() == 2 else batch.reshape(-1, FEATURES)
    for value in batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ():
        if isinstance(value, torch.Tensor):
            return value.reshape(-1, FEATURES)
    return torch.ones(1, FEATURES)


def train_step(batch: Any, module: Any, optimizer: Any) -> float:
    """Forward, backward and update on one batch."""
    optimizer.zero_grad()
    output = module(first_tensor(batch))
    loss = (output * output).mean()
    loss.backward()
    optimizer.step(*getattr(optimizer, "closure_of_probe", ()))
    return float(loss.detach())


def train(log: Log, loader: Iterable[Any], module: Any, optimizer: Any, epochs: int = 2) -> str:
    """Train; return the sum of losses."""
    total, steps = 0.0, 0
    for _ in range(epochs):
        for batch in loader:
            total += train_step(batch, module, optimizer)
            steps += 1
    log.note(f"{steps} steps")
    return f"{total:.6f}"


def loop(name: str) -> Callable[[Loop], Loop]:
    """Add a loop to LOOPS."""

    def register(function: Loop) -> Loop:
        LOOPS[name] = function
        return function

    return register


LOOPS["ordinary"] = train
