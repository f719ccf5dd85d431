"""Shared by several tests: from test_files."""

from __future__ import annotations

import dataclasses
import json

from gpulab.rows import Rows, Words
from gpulab.run import Run

LONG = 30_000  # events of a trace of several megabytes, which is read in several pieces


BASE_NS = 1_700_000_000_000_000_000


def document(rank=None, began_ms=0, events=3, **more):
    """A small trace whose first event begins so many ms after BASE_NS; each event takes one ms."""
    made = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1000 * (began_ms + at), "dur": 1000}
        for at in range(events)
    ]
    told = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 8}}
    return {**told, "baseTimeNanoseconds": BASE_NS, **more, "traceEvents": made}


def write(path, rank=None, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document(rank, **more)))
    return path


def equal(one, other):
    """Whether two runs agree in every field, every dtype and every bit of every column."""
    for field in dataclasses.fields(Run):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if not isinstance(mine, Rows):
            assert mine == theirs, field.name
            continue
        assert list(mine.columns) == list(theirs.columns)
        for name, values in mine.columns.items():
            back = theirs.columns[name]
            if isinstance(values, Words):
                assert values.to_list() == back.to_list(), name
            else:
                assert (values.dtype, values.tobytes()) == (back.dtype, back.tobytes()), name
    return True


def names(ranks):
    return [run.name for run in ranks]


def numbers(ranks):
    return [run.rank for run in ranks]


def listing(folder):
    return sorted(path.name for path in folder.iterdir())
