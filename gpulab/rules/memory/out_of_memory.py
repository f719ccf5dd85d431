"""A rule about how a run ended: memory ran out."""

from __future__ import annotations

import textwrap

from gpulab.analysis.memory.holders import Held, Holding, held
from gpulab.analysis.memory.step_phases import phase_peaks
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, Finding, figures
from gpulab.rules.memory.oom_remedies import STRANDED_FRAC, WORTH_FRAC, Remedy, remedies
from gpulab.run import Failure
from gpulab.wording import size

CODE_WIDTH = 90
MOST_CODES = 4  # more code than that is not pasted, it is studied
HELD_AS = {
    "parameter": "the parameters of {}",
    "gradient": "the gradients of {}",
    "optimizer": "the state of {}",
    "variable": "{}",
    "output": "{}, the value of an earlier cell",
    "traceback": "the error of an earlier cell",
    "graph": "the intermediate results that {} keeps for backward()",
    "other": "{}",
}


def out_of_memory(evidence: Evidence) -> Finding | None:
    """Memory ran out, and ended the recorded code.

    Proof: the error that ended it, and a walk over every tensor that was alive: each is counted once, for the first
    that would have to let it go. Confused with: memory that other processes hold, which nothing done here frees;
    memory that PyTorch holds in pieces of the wrong size; values that the notebook keeps of earlier cells. Each is
    told apart by its own figure. What to do: in the order of what it costs: free what nobody needs, close what else
    uses the GPU, then compute the batch in parts, with less precision, or twice instead of keeping it.
    """
    failure = evidence.run.failure
    if failure is None:
        return None
    holders = held(evidence.run)
    found = remedies(evidence, failure, holders)
    told = (*_where(failure), *_figures(failure, holders), *_by_phase(evidence, failure))
    return Finding(
        claim=_claim(failure, holders),
        evidence=told or (f"The error: {failure.message[:200]}",),
        numbers=_numbers(failure, holders),
        fix=_code(found),
        advice=_words(found),
        confidence=CERTAIN,
        why_confidence="" if len(holders.holdings) else "but who held it was not seen",
        from_steps=False,
        caveats=("The GPU is simulated: its memory is counted, its allocator is not.",) if failure.simulated else (),
        urgent=True,
    )


def named(holding: Holding) -> str:
    """Who holds it, and how, in words."""
    return HELD_AS.get(holding.kind, "{}").format(holding.who)


def _claim(failure: Failure, holders: Held) -> str:
    kind = "host memory" if failure.device is None else "GPU memory"
    kind = f"simulated {kind}" if failure.simulated else kind
    wanted = "" if failure.needed_bytes is None else f"{size(failure.needed_bytes)} more was wanted"
    free = "" if failure.free_bytes is None else f"{size(failure.free_bytes)} was free"
    biggest = _biggest(failure, holders)
    parts = [part for part in (wanted, free, biggest) if part]
    told = ", and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else "".join(parts)
    return f"Out of {kind}: {told}." if told else f"Out of {kind}."


def _biggest(failure: Failure, holders: Held) -> str:
    """Whoever holds most, of this process or of others."""
    first = holders.holdings[0] if holders.holdings else None
    others = failure.others_bytes or 0
    if others > (first.bytes if first else 0) and others >= WORTH_FRAC * (failure.capacity_bytes or others):
        return f"{size(others)} is held by other processes"
    if first is None:
        return ""
    return f"{size(first.bytes)} is held by {named(first)}"


def _where(failure: Failure) -> tuple[str, ...]:
    phase = f" in the {failure.phase} pass" if failure.phase in ("forward", "backward") else ""
    phase = {"optimizer": " in the optimizer's step", "evaluation": " in evaluation"}.get(failure.phase or "", phase)
    where = f" at {failure.where}" if failure.where else ""
    return (f"It was asked for{phase}{where}.",) if phase or where else ()


def _figures(failure: Failure, holders: Held) -> tuple[str, ...]:
    told = []
    if failure.capacity_bytes and failure.allocated_bytes is not None:
        told.append(f"Of {size(failure.capacity_bytes)}, PyTorch had given out {size(failure.allocated_bytes)}.")
    if failure.capacity_bytes and (failure.needed_bytes or 0) > failure.capacity_bytes:
        told.append("What was wanted in one piece is more than all there is: freeing something cannot help.")
    if failure.others_bytes and failure.others_bytes >= WORTH_FRAC * (failure.capacity_bytes or 0):
        told.append(f"Other processes hold {size(failure.others_bytes)} of this GPU.")
    unused = holders.unused_bytes or 0
    if unused > STRANDED_FRAC * (failure.reserved_bytes or 0):
        told.append(f"PyTorch holds another {size(unused)} that is free, but in pieces too small for what was wanted.")
    if holders.total_bytes:
        most = [f"{named(each)} ({size(each.bytes)})" for each in holders.holdings[:3]]
        told.append(f"Most is held by {'; '.join(most)}.")
    return tuple(told)


def _by_phase(evidence: Evidence, failure: Failure) -> tuple[str, ...]:
    peaks = {} if failure.device is None else phase_peaks(evidence.run, evidence.steps, failure.device)
    if not peaks:
        return ()
    return (f"The most given out by phase: {', '.join(f'{phase} {size(peak)}' for phase, peak in peaks.items())}.",)


def _numbers(failure: Failure, holders: Held) -> dict[str, float]:
    return figures(
        needed_bytes=failure.needed_bytes,
        free_bytes=failure.free_bytes,
        capacity_bytes=failure.capacity_bytes,
        allocated_bytes=failure.allocated_bytes,
        others_bytes=failure.others_bytes,
        unused_bytes=holders.unused_bytes,
        graph_bytes=holders.bytes_of("graph") if holders.holdings else None,
    )


def _code(found: tuple[Remedy, ...]) -> str:
    """The first remedies that are code, each under what it frees."""
    return "\n\n".join(f"# {_headed(remedy)}\n{remedy.code}" for remedy in _coded(found))


def _coded(found: tuple[Remedy, ...]) -> list[Remedy]:
    return [remedy for remedy in found if remedy.code][:MOST_CODES]


def _headed(remedy: Remedy) -> str:
    frees = f"frees {size(remedy.frees_bytes)}: " if remedy.frees_bytes else ""
    return "\n# ".join(textwrap.wrap(f"{frees}{remedy.words}", CODE_WIDTH))


def _words(found: tuple[Remedy, ...]) -> str:
    """What is not code, in the same order."""
    if not found:
        return (
            "Make what asked for it smaller: a smaller batch, fewer samples held at once, files mapped into memory "
            "instead of arrays."
        )
    words = [remedy.words for remedy in found if remedy not in _coded(found)]
    sentences = [f"{each[:1].upper()}{each[1:]}." for each in words]
    return " ".join(sentences)
