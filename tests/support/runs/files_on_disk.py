"""Shared by several tests: from test_files."""

from __future__ import annotations

import dataclasses
import json

from gpulab.rows import Rows, TextColumn
from gpulab.run import Run

LONG = 30_000  # events of a trace of several megabytes, which is read in several blocks


BASE_NS = 1_700_000_000_000_000_000


def document(rank=None, began_ms=0, events=3, **more):
    """A small trace whose first event starts `began_ms` after BASE_NS; each event takes one ms."""
    trace_events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1000 * (began_ms + at), "dur": 1000}
        for at in range(events)
    ]
    rank_info = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 8}}
    return {**rank_info, "baseTimeNanoseconds": BASE_NS, **more, "traceEvents": trace_events}


def write(path, rank=None, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document(rank, **more)))
    return path


def runs_are_equal(one, other):
    """Whether two runs agree in every field, every dtype and every bit of every column."""
    for field in dataclasses.fields(Run):
        one_value, other_value = getattr(one, field.name), getattr(other, field.name)
        if not isinstance(one_value, Rows):
            assert one_value == other_value, field.name
            continue
        assert list(one_value.columns) == list(other_value.columns)
        for name, values in one_value.columns.items():
            back = other_value.columns[name]
            if isinstance(values, TextColumn):
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
