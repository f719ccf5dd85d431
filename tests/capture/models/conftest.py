"""Fixtures of the tests of models that are watched."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """Make this process one that has compiled nothing: after torch.compile, models are not watched."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.utils.counters.clear()
