"""A rule about a run that ended in an out-of-memory error."""

from __future__ import annotations

import re
import textwrap

from gpulab.analysis.memory.holders import MemoryHolder, MemoryHolders, memory_holders
from gpulab.analysis.memory.step_phases import phase_peaks
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, Finding, known_numbers
from gpulab.rules.memory.oom_fixes import MIN_FRAGMENTED_FRAC, MIN_FREED_FRAC, OomFix, oom_fixes
from gpulab.run import Failure
from gpulab.wording import sentence, size

_CODE_WIDTH = 90
_MAX_CODE_FIXES = 4  # further fixes are given as advice
_DESCRIPTIONS = {
    "parameter": 'the parameters of "{}"',
    "gradient": 'the gradients of "{}"',
    "optimizer": 'the optimizer state of "{}"',
    "variable": "{}",
    "output": "{}, the output of an earlier cell",
    "traceback": "the traceback of an earlier cell",
    "graph": "activations that {} keeps for backward()",
    "other": "{}",
}


def out_of_memory(evidence: Evidence) -> Finding | None:
    """The recorded code ended in an out-of-memory error.

    Proof: the error itself, and a list of all tensors that were alive, each counted once under the first owner that
    would have to release it.

    Confused with: memory of other processes, which this process cannot free; fragmentation, where PyTorch reserves
    memory in blocks of the wrong size; values of earlier cells that the notebook keeps. Each has its own number in the
    evidence.

    What to do: the cheapest fix first: free unused tensors, close other processes on the GPU; then split the batch into
    micro-batches, use lower precision, or recompute activations (checkpointing).
    """
    failure = evidence.run.failure
    if failure is None:
        return None
    holders = memory_holders(evidence.run)
    fixes = oom_fixes(evidence, failure, holders)
    evidence_texts = (*_location(failure), *_memory_figures(failure, holders), *_peak_by_phase(evidence, failure))
    return Finding(
        claim=_claim(failure, holders),
        evidence=evidence_texts or (f"The error: {failure.message[:200]}",),
        numbers=_numbers(failure, holders),
        fix=_code(fixes),
        advice=_other_advice(fixes),
        confidence=CERTAIN,
        confidence_reason="" if len(holders.holders) else "the owners of the memory were not recorded",
        from_steps=False,
        caveats=("The GPU is simulated: memory is counted, but the allocator is not modelled.",)
        if failure.simulated
        else (),
        urgent=True,
    )


def describe_owner(holding: MemoryHolder) -> str:
    """Return a description of the owner of this memory."""
    return _DESCRIPTIONS.get(holding.kind, "{}").format(holding.name)


def _claim(failure: Failure, holders: MemoryHolders) -> str:
    kind = "host memory" if failure.device is None else "GPU memory"
    kind = f"simulated {kind}" if failure.simulated else kind
    request = "" if failure.needed_bytes is None else f"an allocation of {size(failure.needed_bytes)} failed"
    free_memory = "" if failure.free_bytes is None else f"{size(failure.free_bytes)} was free"
    largest = _largest_owner(failure, holders)
    parts = [part for part in (request, free_memory, largest) if part]
    details = ", and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else "".join(parts)
    return f"Out of {kind}: {details}." if details else f"Out of {kind}."


def _largest_owner(failure: Failure, holders: MemoryHolders) -> str:
    """Return the largest owner of memory, in this process or another."""
    first = holders.holders[0] if holders.holders else None
    others = failure.others_bytes or 0
    if others > (first.bytes if first else 0) and others >= MIN_FREED_FRAC * (failure.capacity_bytes or others):
        return f"{size(others)} is used by other processes"
    if first is None:
        return ""
    return f"{size(first.bytes)} is used by {describe_owner(first)}"


def _location(failure: Failure) -> tuple[str, ...]:
    phase = f" in the {failure.phase} pass" if failure.phase in ("forward", "backward") else ""
    phase = {"optimizer": " in the optimizer step", "evaluation": " during evaluation"}.get(failure.phase or "", phase)
    location = f"{',' if phase else ''} at {_line_and_function(failure.where)}" if failure.where else ""
    return (f"The allocation failed{phase}{location}.",) if phase or location else ()


def _line_and_function(location: str) -> str:
    """Return "train.py:75 in fill()" for "fill (train.py:75)"."""
    match = re.fullmatch(r"([\w.<>]+) \((.+)\)", location)
    return f"{match[2]} in {match[1]}()" if match else location


def _memory_figures(failure: Failure, holders: MemoryHolders) -> tuple[str, ...]:
    sentences = []
    if failure.capacity_bytes and failure.allocated_bytes is not None:
        sentences.append(f"PyTorch had allocated {size(failure.allocated_bytes)} of {size(failure.capacity_bytes)}.")
    if failure.capacity_bytes and (failure.needed_bytes or 0) > failure.capacity_bytes:
        sentences.append("The allocation is larger than the whole memory: freeing memory cannot help.")
    if failure.others_bytes and failure.others_bytes >= MIN_FREED_FRAC * (failure.capacity_bytes or 0):
        sentences.append(f"Other processes hold {size(failure.others_bytes)} of this GPU.")
    unused = holders.unused_bytes or 0
    if unused > MIN_FRAGMENTED_FRAC * (failure.reserved_bytes or 0):
        sentences.append(
            f"Fragmentation: PyTorch reserves another {size(unused)} in free fragments that are too small for the "
            "allocation."
        )
    if holders.total_bytes:
        largest = [f"{describe_owner(holding)} ({size(holding.bytes)})" for holding in holders.holders[:3]]
        sentences.append(f"Largest owners: {'; '.join(largest)}.")
    return tuple(sentences)


def _peak_by_phase(evidence: Evidence, failure: Failure) -> tuple[str, ...]:
    peaks = {} if failure.device is None else phase_peaks(evidence.run, evidence.steps, failure.device)
    if not peaks:
        return ()
    return (f"Peak allocation by phase: {', '.join(f'{phase} {size(peak)}' for phase, peak in peaks.items())}.",)


def _numbers(failure: Failure, holders: MemoryHolders) -> dict[str, float]:
    return known_numbers(
        needed_bytes=failure.needed_bytes,
        free_bytes=failure.free_bytes,
        capacity_bytes=failure.capacity_bytes,
        allocated_bytes=failure.allocated_bytes,
        others_bytes=failure.others_bytes,
        unused_bytes=holders.unused_bytes,
        graph_bytes=holders.bytes_of("graph") if holders.holders else None,
    )


def _code(fixes: tuple[OomFix, ...]) -> str:
    """Return the fixes that have code, each under a comment."""
    return "\n\n".join(f"# {_comment(fix)}\n{fix.code}" for fix in _fixes_with_code(fixes))


def _fixes_with_code(fixes: tuple[OomFix, ...]) -> list[OomFix]:
    return [fix for fix in fixes if fix.code][:_MAX_CODE_FIXES]


def _comment(fix: OomFix) -> str:
    frees = f"frees {size(fix.frees_bytes)}: " if fix.frees_bytes else ""
    return "\n# ".join(textwrap.wrap(f"{frees}{fix.description}", _CODE_WIDTH))


def _other_advice(fixes: tuple[OomFix, ...]) -> str:
    """Return the fixes without code as sentences, in the same order."""
    if not fixes:
        return (
            "Reduce the memory of this code: a smaller batch, fewer samples in memory at once, memory-mapped files "
            "instead of arrays."
        )
    with_code = _fixes_with_code(fixes)
    return " ".join(sentence(fix.description) for fix in fixes if fix not in with_code)
