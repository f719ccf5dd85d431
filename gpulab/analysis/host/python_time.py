"""Classify host time outside PyTorch: user code, gpulab itself, garbage collection, compilation, the GIL, or idle.

Each class has its own causes and fixes. The classes sum to the ledger part "python".
"""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.analysis.host.cpu_use import CpuUse, thread_cpu_use
from gpulab.analysis.host.frames import own_spans
from gpulab.analysis.host.gc_and_compilation import overlap_ns, stall_spans
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import DISPATCH_KEYS, Ledger
from gpulab.run import Run
from gpulab.tables import StallKind

MIN_OTHERS_FRAC = 0.1  # other threads that use a smaller share of a core do not hold the GIL for long
# The threads of an operator wait for one another, which looks like absence too: up to 8 % of a step, measured on two
# cores. Below these shares the time outside PyTorch counts as the loop's own code.
NOTABLE_FRAC = 0.1  # of a step
NOTABLE_OF_REST = 0.25  # of the time outside PyTorch


@dataclass(frozen=True, kw_only=True)
class PythonTime:
    """Classes of the time without any PyTorch call, in ns of a typical traced step."""

    python_ns: int  # total: the ledger part "python"
    own_ns: int  # gpulab itself, which recording Python frames makes slow; 0 without recorded frames
    collecting_ns: int  # garbage collection
    compiling_ns: int  # torch.compile
    gil_ns: int  # other Python threads computed while the recorded thread did not: it waited for the GIL
    other_gil_ns: (
        int  # GIL waits in other parts: in a DataLoader without workers, and at the start and end of operators
    )
    absent_ns: int  # no thread computed
    threads: CpuUse | None  # None: CPU use is unknown, and gil_ns and absent_ns are 0

    @property
    def user_code_ns(self) -> int:
        """Python code of the loop itself."""
        other_ns = self.own_ns + self.collecting_ns + self.compiling_ns + self.gil_ns + self.absent_ns
        return max(0, self.python_ns - other_ns)


def classify_python_time(run: Run, steps: Steps, ledger: Ledger) -> PythonTime:
    """Classify the ledger part "python"."""
    python_ns = ledger.median_ns("python")
    own_ns = min(python_ns, overlap_ns(ledger, own_spans(run), "python"))
    rest_ns = python_ns - own_ns
    collecting_ns = min(rest_ns, overlap_ns(ledger, stall_spans(run, StallKind.GC), "python"))
    rest_ns -= collecting_ns
    compiling_ns = min(rest_ns, overlap_ns(ledger, stall_spans(run, StallKind.COMPILE), "python"))
    rest_ns -= compiling_ns
    cpu_use = thread_cpu_use(run, steps, ledger)
    step_ns = steps.traced_ns or 0
    waiting_ns = _notable(cpu_use.gil_wait_frac if cpu_use else 0.0, rest_ns, step_ns)
    others_ns = _others_ns(cpu_use, step_ns)
    gil_ns = min(waiting_ns, others_ns)
    return PythonTime(
        python_ns=python_ns,
        own_ns=own_ns,
        collecting_ns=collecting_ns,
        compiling_ns=compiling_ns,
        gil_ns=gil_ns,
        other_gil_ns=0 if not gil_ns or cpu_use is None else _other_gil_ns(cpu_use, ledger, step_ns, gil_ns, others_ns),
        absent_ns=min(waiting_ns - gil_ns, _notable(cpu_use.absent_min_frac if cpu_use else 0.0, rest_ns, step_ns)),
        threads=cpu_use,
    )


def _notable(frac: float, rest_ns: int, step_ns: int) -> int:
    """Return this share of a step in ns, at most the time outside PyTorch; 0 if it is below the thresholds."""
    absent_ns = min(rest_ns, round(frac * step_ns))
    return absent_ns if absent_ns >= max(NOTABLE_FRAC * step_ns, NOTABLE_OF_REST * rest_ns) else 0


def _others_ns(cpu_use: CpuUse | None, step_ns: int) -> int:
    """Return how long other Python threads computed in a step: the longest time they can have held the GIL."""
    if cpu_use is None or cpu_use.others_frac is None or cpu_use.others_frac < MIN_OTHERS_FRAC:
        return 0
    return round(min(1.0, cpu_use.others_frac) * step_ns)


def _other_gil_ns(cpu_use: CpuUse, ledger: Ledger, step_ns: int, gil_ns: int, others_ns: int) -> int:
    """Return the GIL waits inside PyTorch and the DataLoader, which acquire and release it many times per step.

    Operators on the CPU run in the recorded thread: while it is absent, they wait as well.
    """
    fetch_ns = round(cpu_use.fetch_wait_frac * step_ns)
    dispatch_ns = ledger.median_ns(*DISPATCH_KEYS, *(["compute"] if ledger.device == "cpu" else []))
    waiting_ns = max(0, round(cpu_use.gil_wait_frac * step_ns) - gil_ns)
    return min(others_ns - gil_ns, fetch_ns + min(waiting_ns, dispatch_ns))
