"""Collections during a test look at the objects of its module only, not at those of thousands of tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def old_is_frozen() -> None:
    """Exempt whatever exists before the tests of a module from garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def nothing_is_frozen() -> Iterator[None]:
    """Frozen objects take part in garbage collection during a test."""
    gc.unfreeze()
    yield
    gc.freeze()
