"""A checklist with evidence: each item is judged by what a run showed, and says so where it could not be judged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpulab.questions import diagnose
from gpulab.rules import Diagnosis
from gpulab.run import Run
from gpulab.views.sheet import Answer, Row, Sheet, Table
from gpulab.views.view import View

DONE, OPEN, UNKNOWN = "in order", "to do", "not known"
# What to look at, and the rules that look at it.
ITEMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("batches are ready when the model wants them", ("starving", "few_workers", "heavy_items", "slow_storage")),
    ("no more workers and threads than cores", ("many_workers", "many_threads")),
    ("copies to the GPU are pinned and overlap", ("pageable_copies", "copies_in_turn", "built_on_host")),
    ("nothing waits for the GPU in every step", ("host_syncs",)),
    ("the GPU is not waiting for launches", ("dispatch_bound", "host_python", "slow_optimizer")),
    ("the batch fills the GPU and its memory", ("small_batch", "memory_unused")),
    ("matrix products run in the precision that suits them", ("full_precision", "no_tf32", "misaligned")),
    ("few kernels do the work of many", ("unfused", "layout_conversions")),
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


def checklist(run: Run) -> View:
    """The list as something to look at: end a cell with it."""
    judged = items(run)
    count = {state: sum(one.state == state for one in judged) for state in (OPEN, DONE, UNKNOWN)}
    head = f"{run.name}: {count[OPEN]} to do, {count[DONE]} in order, {count[UNKNOWN]} not known."
    rows = tuple(Row((one.asks, one.state, one.evidence)) for one in judged)
    table = Table(
        header=("item", "state", "what shows it"), rows=rows, left=3, caption=f"Run {run.name}: {run.source}."
    )
    return View(Sheet(f"gpulab: checklist of {run.name}", (Answer(claim=head, leading=True), table)))


def _judged(asks: str, rules: Iterable[str], told: Diagnosis) -> Item:
    rules = tuple(rules)
    for finding in told.findings:
        if finding.rule in rules:
            return Item(asks, OPEN, finding.claim)
    hidden = [each for each in told.unjudged if each.rule in rules]
    if len(hidden) == len(rules):
        return Item(asks, UNKNOWN, hidden[0].why)
    looked = len(rules) - len(hidden)
    return Item(asks, DONE, f"{looked} of {len(rules)} rules looked, and found nothing worth a change")
