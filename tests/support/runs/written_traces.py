"""Shared by several tests: from test_trace."""

from __future__ import annotations

import json

from gpulab import trace
from gpulab.tables import EventKind


def x(cat, name, ts, dur, pid=1, tid=1, **args):
    """One event with a duration."""
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def read(*events, **header):
    return trace.read(json.dumps({**header, "traceEvents": events}).encode())


def kinds(run):
    names = run.event_rows.text("name").to_list()
    return dict(zip(names, (EventKind(kind) for kind in run.event_rows["kind"]), strict=True))
