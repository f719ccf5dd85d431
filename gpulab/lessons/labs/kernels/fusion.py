"""What notebook 12 counts of fusing: passes over memory, graphs that a compiler finds, and calls until it has paid."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import TYPE_CHECKING

from gpulab.errors import GpulabError
from gpulab.lessons.labs.host.operators import Called, counts, watching
from gpulab.wording import duration

if TYPE_CHECKING:
    from torch import Tensor

_CALLS = 30  # timed of each variant
_CACHE = "TORCHINDUCTOR_CACHE_DIR"


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What a piece of code has the device do, and what must travel for it."""

    operators: int
    bytes: int  # read and written, each tensor of each operator once
    by_name: dict[str, int]

    @property
    def launches(self) -> int:
        """Operators that are work for the device; a value read back, and bookkeeping, are not."""
        return self.operators - self.by_name.get("_local_scalar_dense", 0)


def traffic(code: Callable[[], object]) -> Traffic:
    """Run a piece of code and count its operators and their bytes; views, bare allocations and bookkeeping are none."""
    names: Counter[str] = Counter()
    moved: list[int] = []

    def count(called: Called) -> None:
        if called.is_work:
            names[called.name] += 1
            moved.append(_bytes((called.args, called.kwargs)) + _bytes(called.result))

    with watching(count):
        code()
    return Traffic(operators=names.total(), bytes=sum(moved), by_name=dict(names))


def dispatched(code: Callable[[], object]) -> int:
    """Every call that PyTorch's dispatcher sees of a piece of code, its own bookkeeping included."""
    return counts(code).total()


def _bytes(tree: object) -> int:
    import torch
    from torch.utils._pytree import tree_leaves

    # A number that Python hands over becomes a tensor of no dimensions, and travels with the call.
    leaves = [each for each in tree_leaves(tree) if isinstance(each, torch.Tensor) and each.dim()]
    return sum(each.numel() * each.element_size() for each in leaves)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What torch.compile's front end makes of a function."""

    graphs: int
    breaks: int
    reason: str  # for the first break, in PyTorch's own words; "" where there is none


def graphs(function: Callable[..., object], *inputs: object) -> Found:
    """How many graphs torch.compile cuts a function into; nothing is compiled. What the function prints is dropped."""
    import torch

    dynamo = logging.getLogger("torch._dynamo")
    before = dynamo.level
    dynamo.setLevel(logging.ERROR)
    try:
        torch._dynamo.reset()  # a function explained before is remembered
        with contextlib.redirect_stdout(io.StringIO()):
            told = torch._dynamo.explain(function)(*inputs)
    finally:
        dynamo.setLevel(before)
    reasons = [str(each.reason).strip().splitlines()[0] for each in told.break_reasons]
    return Found(
        graphs=told.graph_count,
        breaks=told.graph_break_count,
        reason=reasons[0] if reasons else "",
    )


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A function compiled for real: what that took, and what it gave."""

    first_call_s: float  # in which it is compiled
    before_ms: float  # a call of the function as it was
    after_ms: float  # and compiled
    kernels: int  # that the compiler wrote

    @property
    def break_even(self) -> int:
        """Calls until the time of the first one is earned back. Raises GpulabError where no call gains anything."""
        return break_even(self.first_call_s, self.before_ms, self.after_ms)


# Of an 8-operator tanh-GELU on a million numbers, with torch 2.13 on two cores of an AMD EPYC, nothing cached.
MEASURED_EARLIER = Compiled(first_call_s=14.4, before_ms=3.71, after_ms=0.97, kernels=1)


def break_even(first_call_s: float, before_ms: float, after_ms: float) -> int:
    """Calls until the time of the first one is earned back. Raises GpulabError where no call gains anything."""
    if after_ms >= before_ms:
        raise GpulabError(
            "This will never pay.",
            why=f"a call takes {duration(1e6 * after_ms)}, and took {duration(1e6 * before_ms)} before",
            fix="leave the code as it was",
        )
    return ceil(1e3 * first_call_s / (before_ms - after_ms))


_KNOWN: dict[tuple[object, int, str], Compiled] = {}


def compiled(function: Callable[[Tensor], Tensor], count: int, device: str) -> Compiled:
    """Compile a function of so many numbers with torch.compile and time it: seconds to a minute, once in a process.

    On a CPU it takes a C++ compiler. Compiled again, the function would be found where it was loaded: what is told
    then is the first time.
    """
    key = (function.__code__, count, device)
    if key not in _KNOWN:
        _KNOWN[key] = _compiled(function, count, device)
    return _KNOWN[key]


def _compiled(function: Callable[[Tensor], Tensor], count: int, device: str) -> Compiled:
    import torch
    from torch._inductor import metrics

    torch._dynamo.reset()
    metrics.reset()
    quick, sample = torch.compile(function), torch.ones(count, device=device)
    with _nothing_kept():
        began = time.perf_counter()
        quick(sample)
        _settle(sample)
        first_call_s = time.perf_counter() - began
    return Compiled(
        first_call_s=first_call_s,
        before_ms=_typical_ms(function, sample),
        after_ms=_typical_ms(quick, sample),
        kernels=metrics.generated_kernel_count,
    )


@contextlib.contextmanager
def _nothing_kept() -> Iterator[None]:
    """Let the compiler find nothing that it compiled another time, and keep nothing."""
    before = os.environ.get(_CACHE)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ[_CACHE] = folder
        try:
            yield
        finally:
            os.environ.pop(_CACHE)
            if before is not None:
                os.environ[_CACHE] = before


def _typical_ms(function: Callable[[Tensor], Tensor], sample: Tensor) -> float:
    took = []
    for _ in range(_CALLS):
        began = time.perf_counter()
        function(sample)
        _settle(sample)
        took.append(time.perf_counter() - began)
    return 1e3 * median(took)


def _settle(sample: Tensor) -> None:
    import torch

    if sample.is_cuda:
        torch.cuda.synchronize()
