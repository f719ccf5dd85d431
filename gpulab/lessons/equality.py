"""Whether two variants of a computation gave the same result, as far as their number formats allow."""

from __future__ import annotations

import numbers
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.errors import RunError
from gpulab.wording import count, percent

# By type, as a share of the largest number of a result: sums of another order differ by so much after some training.
# A Python number may have been any of these.
_TOLERANCES = {"float64": 1e-6, "float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}
_USUAL = 1e-3


@dataclass(frozen=True, kw_only=True)
class Equality:
    """What was compared of the two results."""

    checked: bool
    values: int = 0  # numbers compared
    largest_frac: float = 0.0  # the largest difference, as a share of the largest number beside it
    where: str = ""  # in which part of the result: "['loss']"
    allowed_frac: float | None = None  # the tolerance at that place

    @property
    def words(self) -> str:
        """One clause for a report."""
        if not self.checked:
            return "not checked"
        if not self.largest_frac:
            return f"equal, to the last bit ({count(self.values, 'value')} compared)"
        place = f" at {self.where}" if self.where else ""
        largest = percent(self.largest_frac, figures=2)
        return f"equal within {largest} of the largest value{place} ({self.values:,} compared)"


def equality(before: Any, after: Any, equal: bool | float = True) -> Equality:
    """How far two results differ. Raises RunError where that is more than their types explain.

    `equal`: True by the types of the numbers, a share of the largest value as tolerance, or False to check nothing.
    """
    if equal is False or (before is None and after is None):
        return Equality(checked=False)
    told = tuple(_compared("", before, after, None if equal is True else float(equal)))
    if not told:
        return Equality(checked=True)
    most = max(told, key=lambda each: each.largest_frac / (each.allowed_frac or 1.0))
    values = sum(each.values for each in told)
    return Equality(
        checked=True,
        values=values,
        largest_frac=most.largest_frac,
        where=most.where,
        allowed_frac=most.allowed_frac,
    )


def _compared(where: str, one: Any, other: Any, allowed: float | None) -> Iterator[Equality]:
    one, other = _opened(one), _opened(other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if set(one) != set(other):
            odd = ", ".join(sorted(map(repr, set(one) ^ set(other)))[:5])
            raise _different(where, f"one result has {odd} and the other has not")
        for key in one:
            yield from _compared(f"{where}[{key!r}]", one[key], other[key], allowed)
    elif _listed(one) and _listed(other):
        if len(one) != len(other):
            raise _different(where, f"{len(one)} entries before, {len(other)} after")
        if all(isinstance(each, numbers.Real) for each in (*one, *other)):
            yield _numbers(where, np.array(one), np.array(other), allowed or _USUAL)
            return
        for place, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            yield from _compared(f"{where}[{place}]", mine, theirs, allowed)
    elif _numeric(one) and _numeric(other):
        if hasattr(one, "dtype") and hasattr(other, "dtype") and _whole(one) != _whole(other):
            raise _different(where, f"{_type(one)} before, {_type(other)} after")
        tolerance = allowed or max(_tolerance(one), _tolerance(other))
        yield _numbers(where, _array(one), _array(other), tolerance)
    else:
        yield _same(where, one, other)


def _numbers(where: str, one: np.ndarray, other: np.ndarray, allowed: float) -> Equality:
    if one.shape != other.shape:
        raise _different(where, f"shape {list(one.shape)} before, {list(other.shape)} after")
    if one.dtype.kind in "biu" and other.dtype.kind in "biu":
        if not np.array_equal(one, other):
            count = int((one != other).sum())
            raise _different(where, f"{count:,} of {one.size:,} whole numbers differ{_example(one, other)}")
        return Equality(checked=True, values=one.size)
    mine, theirs = one.astype(np.complex128), other.astype(np.complex128)
    apart = ~((mine == theirs) | (np.isnan(mine) & np.isnan(theirs)))  # equal infinities, and NaN beside NaN, are alike
    gap = np.abs(np.subtract(mine, theirs, out=np.zeros_like(mine), where=apart))
    finite = np.abs(mine[np.isfinite(mine)])
    scale = float(finite.max(initial=0.0)) or 1.0
    share = float(gap.max(initial=0.0)) / scale
    if not share <= allowed:
        of_largest = f"{percent(share, figures=2)} of the largest value"
        told = of_largest if np.isfinite(share) else "one of them is not finite"
        tolerance = percent(allowed, figures=2)
        raise _different(where, f"by {told}, {tolerance} is allowed{_example(one, other)}")
    return Equality(checked=True, values=one.size, largest_frac=share, where=where, allowed_frac=allowed)


def _same(where: str, one: Any, other: Any) -> Equality:
    if type(one) is not type(other):
        raise _different(where, f"{type(one).__name__} before, {type(other).__name__} after")
    if one is other:
        return Equality(checked=True, values=1)
    if getattr(type(one), "__eq__", None) is getattr(object, "__eq__", None):
        raise RunError(
            f"The results of the two variants cannot be compared{_place(where)}.",
            why=f"they are of type {type(one).__name__!r}, which does not tell whether two of it are equal",
            fix="return a number, a tensor, or lists and dicts of these; or pass equal=False",
        )
    if (one == other) is True:
        return Equality(checked=True, values=1)
    raise _different(where, f"{one!r:.40} before, {other!r:.40} after")


def _different(where: str, how: str) -> RunError:
    return RunError(
        "The two variants give different results: a comparison of their times would mean nothing.",
        why=f"they differ{_place(where)}: {how}",
        fix="let both build their model and data anew, so that the same seed gives the same; allow more with "
        "equal=0.05, or pass equal=False where they are meant to differ",
    )


def _place(where: str) -> str:
    return f" at {where}" if where else ""


def _example(one: np.ndarray, other: np.ndarray) -> str:
    with np.errstate(invalid="ignore"):  # infinity less infinity
        gap = np.abs(np.nan_to_num(one.astype(np.complex128) - other.astype(np.complex128), nan=np.inf))
    place = int(np.argmax(gap))
    return f", as {one.reshape(-1)[place]:.6g} and {other.reshape(-1)[place]:.6g}"


def _opened(value: Any) -> Any:
    """A model as its weights, an iterator as it is."""
    states = getattr(value, "state_dict", None)
    return states() if callable(states) and not isinstance(value, type) else value


def _listed(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _numeric(value: Any) -> bool:
    return isinstance(value, numbers.Number | np.ndarray | np.generic) or hasattr(value, "detach")


def _type(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def _whole(value: Any) -> bool:
    """Whether these are whole numbers or truth values, as labels are; with fractions they are something else."""
    return bool(re.match("u?int|bool", _type(value)))


def _tolerance(value: Any) -> float:
    name = str(getattr(value, "dtype", "")).removeprefix("torch.").replace("complex128", "float64")
    return _TOLERANCES.get(name, _USUAL)


def _array(value: Any) -> np.ndarray:
    """A tensor of any kind and place as an array; it brings all that takes, PyTorch itself is not imported."""
    if hasattr(value, "detach"):
        value = value.detach()
        value = value.to_dense() if getattr(value, "is_sparse", False) else value
        value = value.cpu()
        if "bfloat16" in str(value.dtype) or "float8" in str(value.dtype):
            value = value.float()  # NumPy has no such type
        value = value.resolve_conj().resolve_neg().numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise _different("", f"an array of {array.dtype} cannot be compared")
    return array
