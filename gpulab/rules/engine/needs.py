"""What a rule needs from a recording; without it the rule is not judged, and the need says why and what to record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpulab.rules.engine.evidence import Evidence
from gpulab.run_facts import has_operators, is_from_monitor, is_of_pytorch


@dataclass(frozen=True)
class Need:
    """An input that a rule needs: what it is, how to check for it, why it may be missing, and what to record."""

    name: str  # a noun phrase: "a loop that ran on a GPU"
    is_met: Callable[[Evidence], bool]
    why: str  # why it is missing, a clause: "no GPU work was recorded in this run"
    fix: str  # what to record next time
    real_machine_only: bool = False  # read from a real machine, so a virtual GPU never has it


LEDGER = Need(
    "traced steps: let the loop run for 12 steps or more, and do not use --level sensors, which traces nothing",
    lambda evidence: evidence.optional_ledger is not None,
    "no complete step was recorded",
    "let the loop run for twelve steps or more, so that some are traced completely, and do not use --level sensors",
)
GPU_WORK = Need(
    "a loop that ran on a GPU, real or virtual",
    lambda evidence: evidence.optional_ledger is not None and evidence.on_gpu,
    "no GPU work was recorded in this run",
    "profile the loop on a GPU, or with --virtual on a simulated one",
)
COLLECTIVES = Need(
    "a loop that ran on a GPU, or on CPUs with an exchange between ranks (gloo, MPI)",
    lambda evidence: (
        evidence.optional_ledger is not None
        and (evidence.on_gpu or "communication" in evidence.optional_ledger.part_ns)
    ),
    GPU_WORK.why,
    GPU_WORK.fix,
)
PYTORCH = Need(
    "a program of PyTorch, whose causes and fixes gpulab knows",
    lambda evidence: is_of_pytorch(evidence.run),
    "the program is not of PyTorch, and gpulab's rules and fixes are",
    "read the timeline and the table of the step time, which hold for any program",
)
OPERATORS = Need(
    "the operators that PyTorch ran on the CPU, besides the GPU work",
    lambda evidence: not evidence.on_gpu or has_operators(evidence.run),
    "the operators of PyTorch were not recorded",
    "record the loop with %%gpuprofile; under Nsight Systems, run it inside `torch.autograd.profiler.emit_nvtx()`",
)
GPU_SENSORS = Need(
    "sensor readings of an NVIDIA GPU (by %%gpuprofile)",
    lambda evidence: len(evidence.run.gpu_rows) > 0,
    "no GPU sensors were read",
    "profile with %%gpuprofile on a machine with an NVIDIA GPU",
    real_machine_only=True,
)
HOST_SENSORS = Need(
    "CPU and memory readings of the host (by %%gpuprofile)",
    lambda evidence: len(evidence.run.host_rows) > 1,
    "CPU and memory of the host were not sampled",
    "record the loop with %%gpuprofile",
    real_machine_only=True,
)
STEP_MARKS = Need(
    "the times of all steps, which %%gpuprofile records",
    lambda evidence: len(evidence.run.mark_rows) > 0,
    "steps outside the traced ones were not timed",
    "record the loop with %%gpuprofile",
)
INTERPRETER_STALLS = Need(
    "the garbage collections and compilations of the run (by %%gpuprofile)",
    lambda evidence: len(evidence.run.stall_rows) > 0 or len(evidence.run.host_rows) > 1,
    "garbage collections and compilations were not recorded",
    "record the loop with %%gpuprofile; imported traces do not contain them",
    real_machine_only=True,
)
ALLOCATOR = Need(
    "the statistics of PyTorch's CUDA allocator (by %%gpuprofile on a GPU, real or virtual)",
    lambda evidence: len(evidence.run.allocator_rows) > 0,
    "the statistics of PyTorch's CUDA allocator were not read",
    "profile with %%gpuprofile on a GPU, real or virtual",
)
REAL_MACHINE = Need(
    "a run on real hardware, not on a virtual GPU",
    lambda evidence: evidence.run.source.how != "virtual",
    "a simulation has no such measurements",
    "record the loop with %%gpuprofile on a real GPU",
)
ALL_RANKS = Need(
    'the traces of all ranks, loaded together: gpulab.load("folder/")',
    lambda evidence: len(evidence.peers) > 1,
    "the check compares ranks, and the run has only one rank",
    'for distributed training, load the traces of all ranks together: gpulab.load("folder/")',
)


def first_unmet_need(needs: tuple[Need, ...], evidence: Evidence) -> tuple[str, str] | None:
    """Return why a rule with these needs cannot judge the run, and what to record; None if all needs are met."""
    for need in needs:
        if need.is_met(evidence):
            continue
        if evidence.optional_ledger is None and need in (LEDGER, GPU_WORK, COLLECTIVES):
            return why_no_ledger(evidence)
        if need.real_machine_only and not REAL_MACHINE.is_met(evidence):
            return REAL_MACHINE.why, REAL_MACHINE.fix
        if need in (GPU_WORK, COLLECTIVES) and evidence.missing_work:
            return evidence.missing_work, "record the run again and let it finish"
        return need.why, need.fix
    return None


def why_no_ledger(evidence: Evidence) -> tuple[str, str]:
    """Return why the run has no ledger of its steps, and what to record."""
    run = evidence.run
    if is_from_monitor(run):
        is_training = len(run.mark_rows) > 0
        fix = "put %%gpuprofile on the training cell to find the cause" if is_training else ""
        return "a monitor records sensors and step times, and no operators", fix
    if run.recording.level == "sensors":
        return "only sensors and step marks were recorded", "record it again without --level sensors"
    gaps = [gap for gap in run.recording.left_out if gap.concerns_trace]
    if gaps:
        return gaps[0].why, gaps[0].fix
    if not len(run.event_rows) and len(run.mark_rows):
        return "the loop ended before the profiler recorded a step", "let it run for at least twelve steps"
    if not len(run.event_rows):
        return "PyTorch ran no operator while the profiler was on", "record the training loop"
    if evidence.steps.detected_by == "whole run" and run.outcome != "ok":
        return "the program ended before the first step of a loop was complete", ""
    if evidence.steps.detected_by == "whole run":
        return "no steps were found", "if there is a loop, call gpulab.step() at the end of each iteration"
    return "no complete step was recorded", "let the loop run for at least twelve steps"
