"""A timeline of one step as text, with the rows of Nsight Systems: CPU thread, CUDA API, streams.

It is made from the events of a recording. It was not recorded with Nsight Systems.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from gpulab.analysis.copies.copy_table import copy_direction
from gpulab.intervals import covered_ns
from gpulab.lessons.labs.drills import drills
from gpulab.lessons.labs.drills.profiler_tables import one_step
from gpulab.questions import diagnose
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind
from gpulab.wording import duration

SLOTS = 88
SMALL, HALF = 0.1, 0.5  # of a slot
LEGEND = (
    "O operator   D DataLoader   L launch   S cudaStreamSynchronize   C cudaMemcpy call   A cudaMalloc, cudaFree\n"
    "K kernel   > copy to the GPU   < copy to the host   N all-reduce   . nothing recorded\n"
    "A capital letter fills more than half of its slot, a small letter 10 to 50 %."
)
_COMMUNICATION = ("gloo:", "nccl:")


def text_timeline(
    name: str, *, first_ms: float = 0.0, ms: float | None = None, others: tuple[str, ...] = (), legend: bool = True
) -> str:
    """Draw a step of a recording, by its dataset: `ms` of it from `first_ms`, or all of it.

    `others`: recordings of other ranks, drawn below over one step of theirs.
    """
    lines = []
    for rank_name in (name, *others):
        run = drills.named_run(rank_name)
        start_ns, end_ns = one_step(run)
        start_ns += int(1e6 * first_ms)
        end_ns = min(end_ns, start_ns + int(1e6 * ms)) if ms is not None else end_ns
        edges = np.linspace(start_ns, end_ns, SLOTS + 1).astype(np.int64)
        label = f"{run.name}: " if others else ""
        lines.append(f"{label}{run.source}, {duration(end_ns - start_ns)}, {SLOTS} slots")
        lines += [f"{row:<12} {''.join(slots)}" for row, slots in _rows(run, edges)]
    return "\n".join((*lines, LEGEND) if legend else lines)


def _rows(run: Run, edges: np.ndarray) -> Iterator[tuple[str, list[str]]]:
    events = run.event_rows
    on_main = events["thread"] == _main_thread(run)
    operators = events.is_kind(EventKind.OP)
    talking = events.matching(lambda word: word.startswith(_COMMUNICATION)) & ~events.is_kind(EventKind.KERNEL)
    loading = events.select(np.flatnonzero(events.is_kind(EventKind.LOADER) & on_main))
    yield "CPU main", _slot_letters(edges, O=events.select(np.flatnonzero(operators & on_main & ~talking)), D=loading)
    if (operators & ~on_main & ~talking).any():
        yield "CPU backward", _slot_letters(edges, O=events.select(np.flatnonzero(operators & ~on_main & ~talking)))
    if talking.any():
        yield "all-reduce", _slot_letters(edges, N=events.select(np.flatnonzero(talking)))
    calls = {"L": EventKind.LAUNCH, "S": EventKind.SYNC, "C": EventKind.COPY_CALL, "A": EventKind.ALLOC}
    if len(events.of_kind(*calls.values())):
        yield "CUDA API", _slot_letters(edges, **{key: events.of_kind(kind) for key, kind in calls.items()})
    kernels, copies = events.of_kind(EventKind.KERNEL), events.of_kind(EventKind.MEMCPY)
    if len(kernels):
        yield "GPU kernels", _slot_letters(edges, K=kernels)
        to_gpu = copies.matching(lambda word: copy_direction(word) == "HtoD")
        to_host = copies.matching(lambda word: copy_direction(word) == "DtoH")
        marks = {">": copies.select(np.flatnonzero(to_gpu)), "<": copies.select(np.flatnonzero(to_host))}
        yield "GPU copies", _slot_letters(edges, **marks)


def _main_thread(run: Run) -> int:
    """Return the thread that calls the optimizer; the run's main thread if none does."""
    events = run.event_rows
    calling = events["thread"][events.matching(lambda word: word.startswith("Optimizer.step"))]
    return int(np.bincount(calling).argmax()) if len(calling) else run.main_thread


def _slot_letters(edges: np.ndarray, **rows: Rows) -> list[str]:
    """Return one character for each slot: the kind with the most time in it; a dot if none takes a tenth of it."""
    slots = np.diff(edges)
    shares = {key: covered_ns(each.spans(), edges[:-1], edges[1:]) / slots for key, each in rows.items() if len(each)}
    letters = []
    for slot in range(len(slots)):
        key = max(shares, key=lambda each: shares[each][slot], default="")
        share = shares[key][slot] if key else 0.0
        letters.append("." if share < SMALL else key if share > HALF else key.lower())
    return letters


def stream_idle_frac(name: str) -> float:
    """Return the share of a step of a recording in which the GPU neither computes nor copies."""
    run = drills.named_run(name)
    start_ns, end_ns = one_step(run)
    spans = run.event_rows.of_kind(EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET).spans()
    return 1 - float(covered_ns(spans, np.array([start_ns]), np.array([end_ns]))[0]) / (end_ns - start_ns)


# Steps of recordings to diagnose from their timelines.
TIMELINES: Mapping[str, str] = {"A": "h100_13", "B": "h100_02", "C": "h100_05", "D": "h100_01"}
TIMELINE_CAUSES: Mapping[str, str] = {
    "cpu_tensor_creation": "the CPU computes the inputs of the step, and copies them",
    "dispatch_bound": "the CPU launches one short kernel after the other, and the GPU waits for each of them",
    "host_syncs": "the loop copies results to the host in every step, and waits for them",
    "pageable_copies": "the loop waits while a batch is copied to the GPU",
}


def causes_by_report() -> dict[str, str | None]:
    """Return the rule of the report's first finding for each timeline."""
    findings = {letter: diagnose(drills.named_run(name)).first for letter, name in TIMELINES.items()}
    return {letter: finding.rule if finding else None for letter, finding in findings.items()}


def timeline_problem(answer: object) -> str | None:
    """Return what is wrong with {"A": cause, ...}; None if all causes are right."""
    if not isinstance(answer, Mapping) or set(answer) != set(TIMELINES):
        return 'give a cause for each timeline: {"A": ..., "B": ..., "C": ..., "D": ...}'
    if unknown := [cause for cause in answer.values() if cause not in TIMELINE_CAUSES]:
        return f"there is no cause {unknown[0]!r}; the causes are {', '.join(TIMELINE_CAUSES)}"
    right = causes_by_report()
    wrong = [letter for letter in TIMELINES if answer[letter] != right[letter]]
    reasons = {
        "A": "in A, nothing is copied; how much of each slot do kernels fill?",
        "B": "in B, look at the direction of the copy, and at what the CPU does meanwhile",
        "C": "in C, the GPU is idle before the copy; what does the CPU do then?",
        "D": "in D, look at the direction of the copy, and at when it begins",
    }
    return "; ".join(reasons[letter] for letter in wrong) or None
