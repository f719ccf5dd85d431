"""How much work each call to the device starts, and what calling costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.nesting import innermost
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import SMALL_OP_NS, Ledger, main_device
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import Kind


@dataclass(frozen=True, kw_only=True)
class Launching:
    """In the interior steps: how many pieces of work were started, and how large they were."""

    unit: str  # "kernel" or "operator": what a piece is on this device
    count: int  # in all interior steps
    per_step: int
    median_ns: int  # length of a piece
    small_frac: float  # share of pieces shorter than 10 us
    call_ns: int | None  # median length of a launch call; None on the CPU
    graphs: bool  # whole graphs are launched: many kernels a call


def launching(run: Run, steps: Steps, ledger: Ledger) -> Launching | None:
    """How work was started in the interior steps; None where none was."""
    pieces = _kernels(run, steps) if ledger.device == "gpu" else _operators(run, steps)
    if not len(pieces):
        return None
    calls = in_interior(run.event_rows.of_kind(Kind.LAUNCH), steps)
    graphs = calls.matching(lambda word: "GraphLaunch" in word)
    return Launching(
        unit="kernel" if ledger.device == "gpu" else "operator",
        count=len(pieces),
        per_step=round(len(pieces) / int(steps.interior.sum())),
        median_ns=int(np.median(pieces)),
        small_frac=float((pieces < SMALL_OP_NS).mean()),
        call_ns=int(np.median(calls["dur_ns"])) if len(calls) else None,
        graphs=bool(graphs.any()),
    )


def in_interior(rows: Rows, steps: Steps) -> Rows:
    """The rows that begin inside an interior step."""
    return rows.where(steps.in_interior(rows["start_ns"]))


def _kernels(run: Run, steps: Steps) -> Ints:
    """The length of each kernel of the main device."""
    kernels = run.event_rows.of_kind(Kind.KERNEL)
    return in_interior(kernels.where(kernels["device"] == main_device(run)), steps)["dur_ns"]


def _operators(run: Run, steps: Steps) -> Ints:
    """The own time of each operator of the main thread outside the loader."""
    host = run.event_rows.where(run.event_rows["thread"] == run.main_thread)
    ops = in_interior(host.of_kind(Kind.OP), steps)
    own = innermost(ops).per_row_ns(len(ops))
    loader = host.of_kind(Kind.LOADER)
    opens = np.sort(loader["start_ns"])
    closes = np.sort(loader["start_ns"] + loader["dur_ns"])
    begun = np.searchsorted(opens, ops["start_ns"], side="right")
    ended = np.searchsorted(closes, ops["start_ns"], side="right")
    outside: Ints = own[begun == ended]
    return outside
