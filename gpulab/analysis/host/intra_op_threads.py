"""Time of a CPU step in operators that use all intra-op threads of PyTorch."""

from __future__ import annotations

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import subtract
from gpulab.run import Run
from gpulab.tables import EventKind

# MKL computes these and never uses more threads than there are cores, whatever the setting (MKL_DYNAMIC).
_MKL_OPS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmv", "aten::mv", "aten::dot"}


def intra_op_time_ns(run: Run, steps: Steps, ledger: Ledger) -> int:
    """Return the time of a recorded step in such operators: compute without matrix products; 0 on a GPU."""
    if ledger.device != "cpu":
        return 0
    ops = run.event_rows.of_kind(EventKind.OP)
    mkl_time = ops.select(ops.matching(_MKL_OPS.__contains__)).spans()
    return steps.typical_covered_ns(subtract(ledger.spans["compute"], mkl_time))
