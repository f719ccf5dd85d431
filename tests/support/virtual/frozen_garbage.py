"""For tests that play much: what is there before them is not searched for garbage again with every GPU."""

import gc

import pytest


@pytest.fixture(scope="module")
def old_is_frozen():
    """Import it, and it holds for the module."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
