"""How much of a step on a CPU is in operators that use every thread PyTorch has."""

from __future__ import annotations

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import subtract
from gpulab.run import Run
from gpulab.tables import Kind

# MKL, which does these, takes no more threads than there are cores whatever it is told (MKL_DYNAMIC).
_MODEST = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmv", "aten::mv", "aten::dot"}


def crowded_ns(run: Run, steps: Steps, ledger: Ledger) -> int:
    """Time of a recorded step in such operators: all that compute, but for matrix products; 0 on a GPU."""
    if ledger.device != "cpu":
        return 0
    ops = run.event_rows.of_kind(Kind.OP)
    modest = ops.where(ops.matching(_MODEST.__contains__)).spans()
    return steps.typical_covered_ns(subtract(ledger.spans["compute"], modest))
