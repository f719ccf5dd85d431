"""What must have been recorded for a rule to be asked; where it was not, the rule is not judged, with these words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpulab.rules.engine.evidence import Evidence


@dataclass(frozen=True)
class Need:
    """Something a rule cannot do without: whether it is there, why it may not be, and what to record."""

    met: Callable[[Evidence], bool]
    why: str  # a clause: "no GPU work was recorded in this run"
    fix: str  # what to do so that it is there the next time
    real: bool = False  # it is read from a real machine, so a virtual GPU never has it


LEDGER = Need(
    lambda seen: seen.accounts is not None,
    "no complete step was recorded",
    "let the loop run for at least six steps, without --level sensors",
)
GPU_WORK = Need(
    lambda seen: seen.accounts is not None and seen.on_gpu,
    "no GPU work was recorded in this run",
    "profile on a machine with a GPU",
)
GPU_SENSORS = Need(
    lambda seen: len(seen.run.gpu_rows) > 0,
    "no GPU sensors were read",
    "profile here on a machine with an NVIDIA GPU: a trace from elsewhere has no sensors",
    real=True,
)
HOST_SENSORS = Need(
    lambda seen: len(seen.run.host_rows) > 1,
    "the host was not sampled",
    "record the loop with %%gpuprofile: a trace from elsewhere has no sensors",
    real=True,
)
MARKS = Need(
    lambda seen: len(seen.run.mark_rows) > 0,
    "steps outside the recorded ones were not timed",
    "record the loop with %%gpuprofile: a trace from elsewhere tells of the recorded steps only",
)
STALLS = Need(
    lambda seen: len(seen.run.stall_rows) > 0 or len(seen.run.host_rows) > 1,
    "garbage collections and compilations were not recorded",
    "record the loop with %%gpuprofile: a trace from elsewhere does not tell of them",
    real=True,
)
ALLOCATOR = Need(
    lambda seen: len(seen.run.allocator_rows) > 0,
    "PyTorch's CUDA allocator was not read",
    "profile here on a machine with a GPU",
)
REAL = Need(
    lambda seen: seen.run.source.how != "virtual",
    "a virtual GPU is only worked out: nothing of this was measured",
    "%%gpuprofile tells it on a real machine",
)
PEERS = Need(
    lambda seen: len(seen.peers) > 1,
    "one rank alone does not tell",
    'load the traces of all ranks together: gpulab.load("folder/")',
)


def unmet(needs: tuple[Need, ...], seen: Evidence) -> tuple[str, str] | None:
    """Why a rule with these needs cannot be asked, and what to do; None where it can."""
    for need in needs:
        if need.met(seen):
            continue
        if seen.accounts is None and need in (LEDGER, GPU_WORK):
            return without_ledger(seen)
        if need.real and not REAL.met(seen):
            return REAL.why, REAL.fix
        if need is GPU_WORK and seen.missing_work:
            return seen.missing_work, "record it again, to the end"
        return need.why, need.fix
    return None


def without_ledger(seen: Evidence) -> tuple[str, str]:
    """Why there are no steps to account for, and what to do."""
    run = seen.run
    if run.recording.level == "sensors":
        return "only sensors and step marks were recorded", "run the cell again without --level sensors"
    if run.recording.left_out and not len(run.event_rows):
        gap = run.recording.left_out[0]
        return gap.why, gap.fix
    if not len(run.event_rows):
        return "nothing of PyTorch ran while the profiler was on", "profile the cell that holds the training loop"
    return "no complete step was recorded", "let the loop run for at least six steps"
