"""Shared by several tests: from test_timeline_questions."""

from __future__ import annotations

from gpulab.tables import EventKind
from tests.support.runs.made_runs import NO_WORKERS, event, loader_call, run_of, stepped

HOSTILE = "<script>alert('\u202e')</script>" + "x" * 10_000


def trained(**more):
    """Six steps on a GPU: a batch is fetched, a kernel is launched and computes, Python does something."""

    def step(at):
        number = int(at)
        return [
            loader_call(at, 20),
            event(EventKind.OP, "aten::linear", at + 25, 30),
            event(EventKind.OP, "aten::addmm", at + 27, 20),
            event(EventKind.LAUNCH, "cudaLaunchKernel", at + 30, 5, correlation=number),
            event(EventKind.KERNEL, "sgemm_128", at + 40, 35, correlation=number),
            event(EventKind.KERNEL, "elementwise", at + 78, 7, correlation=-1),
        ]

    return run_of(stepped(step), loaders=[NO_WORKERS], **more)


def computed(**more):
    """Six steps on a CPU."""

    def step(at):
        return [
            loader_call(at, 20),
            event(EventKind.OP, "aten::linear", at + 25, 40),
            event(EventKind.OP, "aten::addmm", at + 30, 30),
        ]

    return run_of(stepped(step), loaders=[NO_WORKERS], **more)


def ledger_of(header, side=0):
    return {part["key"]: part["ns"] for part in header["sides"][side]["ledger"]}
