"""A checklist with evidence: each item is judged by what a run showed, and says so where it could not be judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpulab.questions import diagnose
from gpulab.rules import Diagnosis
from gpulab.run import Run
from gpulab.views.sheet.sheet import Answer, Row, Sheet, Table
from gpulab.views.sheet.view import View

DONE, OPEN, UNKNOWN = "nothing now", "to do", "not known"
# What to look at, and the rules that look at it.
ITEMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "batches are ready when the model wants them",
        ("no_workers", "too_few_workers", "cpu_bound_loading", "slow_storage"),
    ),
    ("no more workers and threads than cores", ("too_many_workers", "cpu_oversubscription")),
    ("copies to the GPU are pinned and overlap", ("pageable_copies", "unoverlapped_copies", "cpu_tensor_creation")),
    ("nothing waits for the GPU in every step", ("host_syncs",)),
    ("the GPU is not waiting for launches", ("dispatch_bound", "host_python", "unfused_optimizer")),
    ("the batch fills the GPU and its memory", ("small_batch", "unused_gpu_memory")),
    ("matrix products run in the precision that suits them", ("no_mixed_precision", "no_tf32", "misaligned_shapes")),
    ("few kernels do the work of many", ("unfused_elementwise", "layout_conversions")),
    ("memory neither grows nor is asked for anew", ("memory_growth", "allocator_thrash", "fragmentation")),
)


@dataclass(frozen=True)
class Item:
    """One item of the list: how it stands, and what shows it."""

    asks: str
    state: str
    evidence: str


def items(run: Run) -> tuple[Item, ...]:
    """Every item of the list, judged by this run."""
    told = diagnose(run)
    return tuple(_judged(asks, rules, told) for asks, rules in ITEMS)


def checklist(*runs: Run, names: Sequence[str] = ()) -> View:
    """The list as something to look at: with the evidence for one run, with how each item stands for several.

    `names`: what to call the runs, by default as they were recorded.
    """
    judged, names = [items(run) for run in runs], tuple(names) or tuple(run.name for run in runs)
    heads = tuple(Answer(claim=_counted(name, each), leading=True) for name, each in zip(names, judged, strict=True))
    if len(runs) == 1:
        header: tuple[str, ...] = ("item", "state", "what shows it")
        rows = tuple(Row((one.asks, _unbroken(one.state), one.evidence)) for one in judged[0])
    else:
        header = ("item", *names)
        rows = tuple(Row((each[0].asks, *(_unbroken(one.state) for one in each))) for each in zip(*judged, strict=True))
    caption = "; ".join(f"{name}: {run.source}" for name, run in zip(names, runs, strict=True))
    table = Table(header=header, rows=rows, left=len(header), caption=f"Run {caption}.")
    return View(Sheet(f"gpulab: checklist of {', '.join(names)}", (*heads, table)))


def _counted(name: str, judged: tuple[Item, ...]) -> str:
    count = {state: sum(one.state == state for one in judged) for state in (OPEN, DONE, UNKNOWN)}
    return f"{name}: {count[OPEN]} to do, {count[DONE]} with nothing to do now, {count[UNKNOWN]} not known."


def _unbroken(state: str) -> str:
    return state.replace(" ", "\N{NO-BREAK SPACE}")


def _judged(asks: str, rules: Iterable[str], told: Diagnosis) -> Item:
    rules = tuple(rules)
    mine = [finding for finding in told.findings if finding.rule in rules]
    for finding in mine:
        if not finding.aside:
            return Item(asks, OPEN, finding.claim)
    if mine:  # an aside is worth knowing, and no fault
        return Item(asks, DONE, mine[0].claim)
    hidden = [each for each in told.unjudged if each.rule in rules]
    if len(hidden) == len(rules):
        return Item(asks, UNKNOWN, hidden[0].why)
    looked = len(rules) - len(hidden)
    return Item(asks, DONE, f"{looked} of {len(rules)} rules looked, and found nothing worth a change now")
