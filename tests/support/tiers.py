"""Tiers of tests: which parameters `make test` runs, and which `make test-all` or `make test-nightly` adds.

A parameter outside the first tier carries the mark `full`; one that `make test-nightly` adds, the mark `night`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import settings

DEFAULT_EXAMPLES = 100  # hypothesis' own, and that of the profile "full"


def examples(count: int, **more: Any) -> settings:
    """Return hypothesis settings with `count` examples in the profile "full" and proportionally fewer in "quick"."""
    scaled = round(count * settings().max_examples / DEFAULT_EXAMPLES)
    return settings(max_examples=max(scaled, min(count, 5)), deadline=None, **more)


def is_night() -> bool:
    """Whether the hypothesis profile is "full", which `make test-nightly` uses."""
    return settings().max_examples >= DEFAULT_EXAMPLES


def at_night(count: int, *, otherwise: int) -> int:
    """Return `count` in `make test-nightly`, else the smaller number `otherwise`."""
    return count if is_night() else otherwise


def first_tier(values: Iterable[Any], keep: Collection[Any] | Callable[[Any], bool]) -> list[Any]:
    """Return parameters for every value; those that `keep` does not hold or accept are marked `full`."""
    accepts = keep if callable(keep) else keep.__contains__
    return [value if accepts(value) else pytest.param(value, marks=pytest.mark.full) for value in values]


def every_nth(values: Iterable[Any], step: int, mark: Any = pytest.mark.full) -> list[Any]:
    """Return parameters for every value; all but the first of each `step` carry the mark."""
    return [value if index % step == 0 else _marked(value, mark) for index, value in enumerate(values)]


def _marked(value: Any, mark: Any) -> Any:
    """Return a parameter, or a set of them, with one more mark."""
    if isinstance(value, type(pytest.param())):
        return pytest.param(*value.values, id=value.id, marks=[*value.marks, mark])
    return pytest.param(value, marks=mark)


def tiered_product(*axes: Iterable[Any], strength: int = 2) -> list[Any]:
    """Return parameter sets for the product of the axes; those outside a covering array are marked `night`.

    In the covering array every combination of values of any `strength` axes occurs. With `strength=1` each value
    occurs at least once.
    """
    lists = [list(axis) for axis in axes]
    covered = set(covering_array([len(values) for values in lists], strength))
    return [
        pytest.param(
            *(values[index] for values, index in zip(lists, row, strict=True)),
            marks=() if row in covered else pytest.mark.night,
        )
        for row in itertools.product(*(range(len(values)) for values in lists))
    ]


def covering_array(sizes: Sequence[int], strength: int = 2) -> list[tuple[int, ...]]:
    """Return few rows of indices in which any `strength` columns hold every combination of their values.

    Greedy. Of equally good rows the one with the rarest values is taken, so that a short column takes turns.
    """
    columns = list(itertools.combinations(range(len(sizes)), min(strength, len(sizes))))
    missing = {
        (chosen, values) for chosen in columns for values in itertools.product(*(range(sizes[at]) for at in chosen))
    }
    rows: list[tuple[int, ...]] = []
    uses: Counter[tuple[int, int]] = Counter()
    candidates = list(itertools.product(*map(range, sizes)))

    def merit(row: tuple[int, ...]) -> tuple[int, int]:
        covers = sum((at, _values(row, at)) in missing for at in columns)
        return covers, -sum(uses[each] for each in enumerate(row))

    while missing:
        row = max(candidates, key=merit)
        missing -= {(at, _values(row, at)) for at in columns}
        uses.update(enumerate(row))
        rows.append(row)
    return rows


def _values(row: tuple[int, ...], columns: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(row[at] for at in columns)
