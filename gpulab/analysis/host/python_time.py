"""What the time outside PyTorch was: the loop's own code, a collection, a compilation, the GIL, or nothing at all.

Each kind of it belongs to another cause and another fix; the shares of them sum to the part of the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.analysis.host.gc_and_compilation import overlap_ns, stalled
from gpulab.analysis.host.threads import Threads, threads
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import DISPATCHING, Ledger
from gpulab.run import Run
from gpulab.tables import StallKind

LEAST_FRAC = 0.1  # other threads that use less of a core hold nobody up for long
# The threads of an operator wait for one another, which is absence too and no part of what is looked for: measured up
# to 8 % of a step on two cores. Below these shares the time outside PyTorch counts as the loop's own code.
NOTABLE_FRAC = 0.1  # of a step
NOTABLE_OF_REST = 0.25  # of the time outside PyTorch


@dataclass(frozen=True, kw_only=True)
class Outside:
    """Of a typical traced step, in ns: what the long stretches without any PyTorch call were."""

    python_ns: int  # all of them
    collecting_ns: int
    compiling_ns: int
    gil_ns: int  # other Python threads computed, and the recorded one did not
    other_gil_ns: int  # the same elsewhere: inside a DataLoader without workers, and where operators begin and end
    absent_ns: int  # nobody computed
    threads: Threads | None  # None: who computed is not told, and then gil_ns and absent_ns are 0

    @property
    def own_ns(self) -> int:
        """The loop's own Python code."""
        return max(0, self.python_ns - self.collecting_ns - self.compiling_ns - self.gil_ns - self.absent_ns)


def outside(run: Run, steps: Steps, ledger: Ledger) -> Outside:
    """The part "python" of the ledger, by what it was."""
    python_ns = ledger.median_ns("python")
    collecting_ns = min(python_ns, overlap_ns(ledger, stalled(run, StallKind.GC), "python"))
    compiling_ns = min(python_ns - collecting_ns, overlap_ns(ledger, stalled(run, StallKind.COMPILE), "python"))
    rest_ns = python_ns - collecting_ns - compiling_ns
    who = threads(run, steps, ledger)
    step_ns = steps.traced_ns or 0
    held_ns = _notable(who.held_frac if who else 0.0, rest_ns, step_ns)
    others_ns = _others_ns(who, step_ns)
    gil_ns = min(held_ns, others_ns)
    return Outside(
        python_ns=python_ns,
        collecting_ns=collecting_ns,
        compiling_ns=compiling_ns,
        gil_ns=gil_ns,
        other_gil_ns=0 if not gil_ns or who is None else _elsewhere(who, ledger, step_ns, gil_ns, others_ns),
        absent_ns=min(held_ns - gil_ns, _notable(who.surely_absent_frac if who else 0.0, rest_ns, step_ns)),
        threads=who,
    )


def _notable(frac: float, rest_ns: int, step_ns: int) -> int:
    """Such a share of a step, where it can lie in the time outside PyTorch and is enough to speak of; else 0."""
    held_ns = min(rest_ns, round(frac * step_ns))
    return held_ns if held_ns >= max(NOTABLE_FRAC * step_ns, NOTABLE_OF_REST * rest_ns) else 0


def _others_ns(who: Threads | None, step_ns: int) -> int:
    """How long other Python threads computed in a step: so long, at most, they had the GIL."""
    if who is None or who.others_frac is None or who.others_frac < LEAST_FRAC:
        return 0
    return round(min(1.0, who.others_frac) * step_ns)


def _elsewhere(who: Threads, ledger: Ledger, step_ns: int, gil_ns: int, others_ns: int) -> int:
    """What the GIL costs inside of PyTorch and the DataLoader, where it is taken and given back many times a step.

    Operators that compute on the CPU do so in the recorded thread: where that is absent, they wait as well.
    """
    fetching_ns = round(who.fetch_waits_frac * step_ns)
    within_ns = ledger.median_ns(*DISPATCHING, *(["compute"] if ledger.device == "cpu" else []))
    held_ns = max(0, round(who.held_frac * step_ns) - gil_ns)
    return min(others_ns - gil_ns, fetching_ns + min(held_ns, within_ns))
