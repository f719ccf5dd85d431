"""Check whether two variants of a computation give the same result, within the precision of their data types."""

from __future__ import annotations

import numbers
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.errors import RunError
from gpulab.wording import count, percent

# Tolerances by data type, as a share of the largest number of a result: after some training steps, sums in another
# order differ by this much. A Python number may come from any of these types.
_TOLERANCES = {"float64": 1e-6, "float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}
_DEFAULT_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Equality:
    """The result of comparing two results that are equal."""

    checked: bool
    values: int = 0  # numbers compared
    largest_frac: float = 0.0  # the largest difference, as a share of the largest number of the same part
    path: str = ""  # the part of the result with the largest difference: "['loss']"
    allowed_frac: float | None = None  # the tolerance of that part

    @property
    def description(self) -> str:
        """One clause for a report."""
        if not self.checked:
            return "not checked"
        if not self.largest_frac:
            return f"bitwise equal ({count(self.values, 'value')} compared)"
        place = f" at {self.path}" if self.path else ""
        largest = percent(self.largest_frac, figures=2)
        return f"equal within {largest} of the largest value{place} ({self.values:,} compared)"


def check_equality(before: Any, after: Any, equal: bool | float = True) -> Equality:
    """Compare two results. Raises RunError if they differ by more than the tolerance, or cannot be compared.

    `equal`: True for the tolerance of the data types, a share of the largest value as tolerance, or False to check
    nothing.
    """
    if equal is False or (before is None and after is None):
        return Equality(checked=False)
    parts = tuple(_compare("", before, after, None if equal is True else float(equal)))
    if not parts:
        return Equality(checked=True)
    worst = max(parts, key=lambda part: part.largest_frac / (part.allowed_frac or 1.0))
    values = sum(part.values for part in parts)
    return Equality(
        checked=True,
        values=values,
        largest_frac=worst.largest_frac,
        path=worst.path,
        allowed_frac=worst.allowed_frac,
    )


def _compare(path: str, one: Any, other: Any, allowed: float | None) -> Iterator[Equality]:
    one, other = _state_or_value(one), _state_or_value(other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if set(one) != set(other):
            unmatched = ", ".join(sorted(map(repr, set(one) ^ set(other)))[:5])
            raise _difference_error(path, f"only one of the results has {unmatched}")
        for key in one:
            yield from _compare(f"{path}[{key!r}]", one[key], other[key], allowed)
    elif _is_sequence(one) and _is_sequence(other):
        if len(one) != len(other):
            raise _difference_error(path, f"{len(one)} entries before, {len(other)} after")
        if all(isinstance(item, numbers.Real) for item in (*one, *other)):
            yield _compare_arrays(path, np.array(one), np.array(other), allowed or _DEFAULT_TOLERANCE)
            return
        for index, (item, other_item) in enumerate(zip(one, other, strict=True)):
            yield from _compare(f"{path}[{index}]", item, other_item, allowed)
    elif _is_numeric(one) and _is_numeric(other):
        if hasattr(one, "dtype") and hasattr(other, "dtype") and _is_integer(one) != _is_integer(other):
            raise _difference_error(path, f"{_dtype(one)} before, {_dtype(other)} after")
        tolerance = allowed or max(_tolerance(one), _tolerance(other))
        yield _compare_arrays(path, _array(one), _array(other), tolerance)
    else:
        yield _compare_objects(path, one, other)


def _compare_arrays(path: str, one: np.ndarray, other: np.ndarray, allowed: float) -> Equality:
    if one.shape != other.shape:
        raise _difference_error(path, f"shape {list(one.shape)} before, {list(other.shape)} after")
    if one.dtype.kind in "biu" and other.dtype.kind in "biu":
        if not np.array_equal(one, other):
            differing = int((one != other).sum())
            raise _difference_error(path, f"{differing:,} of {one.size:,} integers differ{_example(one, other)}")
        return Equality(checked=True, values=one.size)
    first, second = one.astype(np.complex128), other.astype(np.complex128)
    unequal = ~((first == second) | (np.isnan(first) & np.isnan(second)))  # equal infinities and pairs of NaN are equal
    gap = np.abs(np.subtract(first, second, out=np.zeros_like(first), where=unequal))
    finite = np.abs(first[np.isfinite(first)])
    scale = float(finite.max(initial=0.0)) or 1.0
    share = float(gap.max(initial=0.0)) / scale
    if not share <= allowed:
        of_largest = f"by {percent(share, figures=2)} of the largest value"
        difference = of_largest if np.isfinite(share) else "one of them is not finite"
        tolerance = percent(allowed, figures=2)
        raise _difference_error(path, f"{difference}; the tolerance is {tolerance}{_example(one, other)}")
    return Equality(checked=True, values=one.size, largest_frac=share, path=path, allowed_frac=allowed)


def _compare_objects(path: str, one: Any, other: Any) -> Equality:
    if type(one) is not type(other):
        raise _difference_error(path, f"{type(one).__name__} before, {type(other).__name__} after")
    if one is other:
        return Equality(checked=True, values=1)
    if getattr(type(one), "__eq__", None) is getattr(object, "__eq__", None):
        raise RunError(
            f"The results of the two variants cannot be compared{_at(path)}.",
            why=f"the type {type(one).__name__!r} does not define equality",
            fix="return a number, a tensor, or lists and dicts of these; or pass equal=False",
        )
    if (one == other) is True:
        return Equality(checked=True, values=1)
    raise _difference_error(path, f"{one!r:.40} before, {other!r:.40} after")


def _difference_error(path: str, difference: str) -> RunError:
    return RunError(
        "The two variants give different results, so a comparison of their times would be meaningless.",
        why=f"they differ{_at(path)}: {difference}",
        fix="let both variants create their model and data from scratch, so that the same seed gives the same result; "
        "pass a tolerance such as equal=0.05, or equal=False if they are meant to differ",
    )


def _at(path: str) -> str:
    return f" at {path}" if path else ""


def _example(one: np.ndarray, other: np.ndarray) -> str:
    """Return the pair of values with the largest difference and its position, as text."""
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        gap = np.abs(np.nan_to_num(one.astype(np.complex128) - other.astype(np.complex128), nan=np.inf))
    index = int(np.argmax(gap))
    place = f" at {[int(part) for part in np.unravel_index(index, one.shape)]}" if one.size > 1 else ""
    return f", for example {one.reshape(-1)[index]:.6g} and {other.reshape(-1)[index]:.6g}{place}"


def _state_or_value(value: Any) -> Any:
    """Return the state_dict of a model or optimizer, and any other value as it is."""
    state_dict = getattr(value, "state_dict", None)
    return state_dict() if callable(state_dict) and not isinstance(value, type) else value


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_numeric(value: Any) -> bool:
    return isinstance(value, numbers.Number | np.ndarray | np.generic) or hasattr(value, "detach")


def _dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.")


def _is_integer(value: Any) -> bool:
    """Return whether the values are integers or booleans, such as labels; they must not be compared with floats."""
    return bool(re.match("u?int|bool", _dtype(value)))


def _tolerance(value: Any) -> float:
    name = str(getattr(value, "dtype", "")).removeprefix("torch.").replace("complex128", "float64")
    return _TOLERANCES.get(name, _DEFAULT_TOLERANCE)


def _array(value: Any) -> np.ndarray:
    """Convert a tensor of any layout, device and type to an array, with the tensor's own methods (no torch import)."""
    if hasattr(value, "detach"):
        value = value.detach()
        value = value.to_dense() if getattr(value, "is_sparse", False) else value
        value = value.cpu()
        if "bfloat16" in str(value.dtype) or "float8" in str(value.dtype):
            value = value.float()  # NumPy has no such type
        value = value.resolve_conj().resolve_neg().numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise _difference_error("", f"an array of {array.dtype} cannot be compared")
    return array
