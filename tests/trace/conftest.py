"""Tests of reading traces run with each parser, except those that compare with the slow oracle."""

from __future__ import annotations

import pytest

from tests.support.trace_parsers import PARSERS, reading_with

FAST = ("test_dialects", "test_reading", "test_side_tables")
SLOW = ("test_damaged",)  # in the first tier with one parser, which leaves damaged chunks to the other one


def pytest_generate_tests(metafunc):
    module = metafunc.module.__name__.rpartition(".")[2]
    if module in FAST + SLOW and "both" not in metafunc.fixturenames:
        marks = pytest.mark.full if module in SLOW else ()
        parsers = [PARSERS[0], *(pytest.param(parser, marks=marks) for parser in PARSERS[1:])]
        metafunc.parametrize("parser", parsers, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def parser(request):
    """The parser of the tests of a module, if it is one of those that run with each."""
    if not hasattr(request, "param"):
        yield
        return
    with reading_with(request.param):
        yield
