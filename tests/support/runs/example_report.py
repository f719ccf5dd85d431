"""Runs that the tests of several views look at, and the report of a loop that waits for data."""

from __future__ import annotations

import dataclasses
from typing import Any

from gpulab.tables import EventKind
from gpulab.views.report.report import report
from tests.support.runs.made_runs import NO_WORKERS, event, host_sample, loader_call, mark, run_of, stepped
from tests.support.runs.simulated_machine import Call, run_like


def starved(at: float) -> list[Any]:
    work = [event(EventKind.KERNEL, "ampere_sgemm", at + 42, 38), event(EventKind.KERNEL, "elementwise", at + 80, 15)]
    return [loader_call(at, 40), event(EventKind.OP, "aten::mm", at + 41, 2), *work]


def example_report() -> Any:
    samples = [host_sample(at, cpu_frac=0.5) for at in range(0, 600, 100)]
    return report(run_of(stepped(starved), loaders=[NO_WORKERS], samples=samples))


def loading_run(wait_ms: float = 30.0, name: str = "loading", workers: int = 0) -> Any:
    """A run on a CPU that waits for data in every step."""
    events, marks, at_ms = [], [], 0.0
    for _ in range(60):
        events += [loader_call(at_ms, wait_ms, workers), event(EventKind.OP, "aten::mm", at_ms + wait_ms + 0.5, 19.0)]
        marks.append(mark(at_ms, wait_ms, cpu_ms=3.0))
        at_ms += wait_ms + 20.0
    loader = dataclasses.replace(NO_WORKERS, workers=workers)
    return run_of(events, marks=marks, loaders=[loader], windows=[(at_ms * 0.4, at_ms * 0.9)], name=name)


def launch_bound_run() -> Any:
    """A run whose step is many short kernels and a wait at its end."""
    loop = [Call(loads_us=900.0), *[Call(host_us=20.0, kernel_us=40.0)] * 30, Call(waits=True), Call(host_us=400.0)]
    return run_like(loop, steps=10)
