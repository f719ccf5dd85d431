"""Chance, made the same before each of several runs, and given back afterwards as if nothing had been drawn."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np


def begin_anew(number: int) -> None:
    """Python's, NumPy's and, where it is imported, PyTorch's random numbers begin anew, on every GPU in use."""
    random.seed(number)
    np.random.seed(number % 2**32)  # the global one is what other people's code draws from
    torch = _torch()
    if torch is not None:
        torch.manual_seed(number)


def settled() -> None:
    """Wait until every GPU in use has done what was asked of it: what comes next begins with an idle one."""
    torch = _torch()
    if torch is not None and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)


@contextlib.contextmanager
def chance_kept() -> Iterator[None]:
    """Whatever is seeded or drawn inside, random numbers go on afterwards where they were."""
    ours, numpys, torchs = random.getstate(), np.random.get_state(), _torch_states()
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(numpys)
        _restore_torch(torchs)


def _torch() -> Any:
    """PyTorch where the user's code has imported it: seeding must not be what starts it."""
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
