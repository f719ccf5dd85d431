"""A report that several tests look at: a loop that starves, with sensors read."""

from __future__ import annotations

from typing import Any

from gpulab.tables import EventKind
from gpulab.views.report.report import report
from tests.support.runs.made_runs import NO_WORKERS, event, host_sample, loader_call, run_of, stepped


def starved(at: float) -> list[Any]:
    work = [event(EventKind.KERNEL, "ampere_sgemm", at + 42, 38), event(EventKind.KERNEL, "elementwise", at + 80, 15)]
    return [loader_call(at, 40), event(EventKind.OP, "aten::mm", at + 41, 2), *work]


def example_report() -> Any:
    samples = [host_sample(at, cpu_frac=0.5) for at in range(0, 600, 100)]
    return report(run_of(stepped(starved), loaders=[NO_WORKERS], samples=samples))
