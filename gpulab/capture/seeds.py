"""Seed random numbers equally before each of several runs, and restore their state afterwards."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np


def seed_everything(number: int) -> None:
    """Seed Python's, NumPy's and, if it is imported, PyTorch's random numbers on every GPU in use."""
    random.seed(number)
    np.random.seed(number % 2**32)  # the global generator, which other people's code uses
    torch = _torch()
    if torch is not None:
        torch.manual_seed(number)


def synchronize_gpus() -> None:
    """Wait until every GPU in use is idle."""
    torch = _torch()
    if torch is not None and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)


@contextlib.contextmanager
def preserve_random_state() -> Iterator[None]:
    """Restore the state of the random number generators at the end of this context."""
    python_state, numpy_state, torch_states = random.getstate(), np.random.get_state(), _torch_states()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        _restore_torch(torch_states)


def _torch() -> Any:
    """torch, if the user's code has imported it: seeding must not import it."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and hasattr(torch, "cuda") else None


def _torch_states() -> tuple[Any, tuple[Any, ...]] | None:
    torch = _torch()
    if torch is None:
        return None
    started = torch.cuda.is_initialized()
    return torch.get_rng_state(), tuple(torch.cuda.get_rng_state_all()) if started else ()


def _restore_torch(states: tuple[Any, tuple[Any, ...]] | None) -> None:
    torch = _torch()
    if states is None or torch is None:
        return
    torch.set_rng_state(states[0])
    if states[1]:
        torch.cuda.set_rng_state_all(list(states[1]))
