"""The parsers that a trace can be read with, and what it means that they read the same."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator

import numpy as np
import pytest

from gpulab import trace
from gpulab.errors import TraceError
from gpulab.rows import Rows, TextColumn
from gpulab.run import TABLE_FIELDS, Run
from gpulab.trace.reading.compiled import uses_compiled_parser

PARSERS = ("compiled", "python")
VARIABLE = "GPULAB_COMPILED"


def need_compiled() -> None:
    if not uses_compiled_parser():
        pytest.skip(f"the compiled parser was not built, or {VARIABLE} is no")


@contextlib.contextmanager
def reading_with(parser: str) -> Iterator[None]:
    """Read traces with one of the parsers. Skips the test if it was not built."""
    if parser == "compiled":
        need_compiled()
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "yes" if parser == "compiled" else "no"
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def assert_both_read_the_same(source, **options) -> Run | TraceError:
    """Read with both parsers; the run, or the error, must be the same."""
    results = []
    for parser in PARSERS:
        with reading_with(parser):
            try:
                results.append(trace.read(source, **options))
            except TraceError as error:
                results.append(error)
    compiled, python = results
    if isinstance(python, TraceError):
        assert str(compiled) == str(python)
    else:
        assert_same_run(compiled, python)
    return compiled


def assert_same_run(one: Run, other: Run) -> None:
    for field in dataclasses.fields(one):
        value, expected = getattr(one, field.name), getattr(other, field.name)
        if field.name in TABLE_FIELDS:
            assert_same_rows(value, expected)
        else:
            assert value == expected, field.name


def assert_same_rows(one: Rows, other: Rows) -> None:
    assert one.columns.keys() == other.columns.keys()
    for name, values in one.columns.items():
        expected = other.columns[name]
        if isinstance(values, TextColumn):
            assert values.vocabulary == expected.vocabulary, name
            values, expected = values.codes, expected.codes
        assert values.dtype == expected.dtype, name
        np.testing.assert_array_equal(values, expected, name)
