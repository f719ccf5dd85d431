"""Launches: how many kernels or operators a step starts, how long they are, and the cost of a launch call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.nesting import innermost
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import SMALL_OP_NS, Ledger, main_device
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind

LARGE_OPERATOR_NS = 100_000  # dispatch is a few per cent of such an operator, and a larger batch makes it longer
_SHORT_LAYER_NS = 1_000_000
_RECURRENT = "aten::mkldnn_rnn_layer"  # of nn.LSTM, forward and backward


@dataclass(frozen=True, kw_only=True)
class LaunchStats:
    """Kernels (or operators on a CPU) of the interior steps: number and duration."""

    unit: str  # "kernel" or "operator", by device
    count: int  # in all interior steps
    per_step: int
    median_ns: int  # median duration of one
    small_frac: float  # share shorter than 10 us
    call_ns: int | None  # median length of a launch call; None on the CPU
    uses_cuda_graphs: bool  # CUDA graphs are launched: many kernels per call


def launch_stats(run: Run, steps: Steps, ledger: Ledger) -> LaunchStats | None:
    """Compute the launch statistics of the interior steps; None if nothing was launched."""
    durations_ns = _kernels(run, steps) if ledger.device == "gpu" else _operators(run, steps)
    if not len(durations_ns):
        return None
    calls = rows_in_interior(run.event_rows.of_kind(EventKind.LAUNCH), steps)
    graphs = calls.matching(lambda name: "GraphLaunch" in name)
    return LaunchStats(
        unit="kernel" if ledger.device == "gpu" else "operator",
        count=len(durations_ns),
        per_step=round(len(durations_ns) / int(steps.interior.sum())),
        median_ns=int(np.median(durations_ns)),
        small_frac=float((durations_ns < SMALL_OP_NS).mean()),
        call_ns=int(np.median(calls["dur_ns"])) if len(calls) else None,
        uses_cuda_graphs=bool(graphs.any()),
    )


def rows_in_interior(rows: Rows, steps: Steps) -> Rows:
    """Return the rows that start in an interior step."""
    return rows.select(steps.interior_mask(rows["start_ns"]))


def small_operators_ns(run: Run, steps: Steps, ledger: Ledger) -> int:
    """Return the time per interior step in operators that compute, but not for long; outside the DataLoader."""
    self_ns = _operators(run, steps)
    small = (self_ns >= SMALL_OP_NS) & (self_ns < LARGE_OPERATOR_NS)
    return round(int(self_ns[small].sum()) / max(1, int(steps.interior.sum())))


def short_recurrent_layers_ns(run: Run, steps: Steps, ledger: Ledger) -> int:
    """Return the time per interior step in short calls of oneDNN's recurrent layers that are no small operators.

    Each call is prepared anew, which takes most of a call for one time step: measured, 0.58 to 0.93 for LSTMs of 64 to
    256 hidden units.
    """
    ops, self_ns = _self_times(run, steps)
    is_recurrent = ops.matching(lambda name: name.startswith(_RECURRENT))
    counted = self_ns[is_recurrent & (self_ns >= LARGE_OPERATOR_NS) & (self_ns < _SHORT_LAYER_NS)]
    return round(int(counted.sum()) / max(1, int(steps.interior.sum())))


def _kernels(run: Run, steps: Steps) -> Ints:
    """Return the duration of each kernel of the main device."""
    kernels = run.event_rows.of_kind(EventKind.KERNEL)
    return rows_in_interior(kernels.select(kernels["device"] == main_device(run)), steps)["dur_ns"]


def _operators(run: Run, steps: Steps) -> Ints:
    """Return the self time of each operator of the main thread outside the DataLoader."""
    ops, self_ns = _self_times(run, steps)
    loader = run.event_rows.select(run.event_rows["thread"] == run.main_thread).of_kind(EventKind.LOADER)
    starts = np.sort(loader["start_ns"])
    ends = np.sort(loader["start_ns"] + loader["dur_ns"])
    started = np.searchsorted(starts, ops["start_ns"], side="right")
    ended = np.searchsorted(ends, ops["start_ns"], side="right")
    outside: Ints = self_ns[started == ended]
    return outside


def _self_times(run: Run, steps: Steps) -> tuple[Rows, Ints]:
    """Return the operators of the main thread in interior steps, and the time of each without those inside it."""
    host = run.event_rows.select(run.event_rows["thread"] == run.main_thread)
    ops = rows_in_interior(host.of_kind(EventKind.OP), steps)
    return ops, innermost(ops).per_row_ns(len(ops))
