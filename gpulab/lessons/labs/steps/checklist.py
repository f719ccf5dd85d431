"""An optimisation checklist with evidence: each item is judged by the rules on a recorded run, or is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpulab.questions import diagnose
from gpulab.rules import Diagnosis
from gpulab.run import Run
from gpulab.views.sheet.sheet import Answer, Row, Sheet, TableBlock
from gpulab.views.sheet.view import View

DONE, OPEN, UNKNOWN = "nothing now", "to do", "unknown"
# The items of the checklist, and the rules that judge each of them.
CHECKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "data loading keeps up with the model",
        ("no_workers", "too_few_workers", "cpu_bound_loading", "slow_storage"),
    ),
    ("not more workers and threads than cores", ("too_many_workers", "cpu_oversubscription")),
    ("copies to the GPU are pinned and overlap", ("pageable_copies", "unoverlapped_copies", "cpu_tensor_creation")),
    ("no GPU synchronisation in every step", ("host_syncs",)),
    ("the GPU does not wait for kernel launches", ("dispatch_bound", "host_python", "unfused_optimizer")),
    ("the batch is large enough for the GPU and its memory", ("small_batch", "unused_gpu_memory")),
    (
        "matrix products use tensor cores (mixed precision, TF32, aligned shapes)",
        ("no_mixed_precision", "no_tf32", "misaligned_shapes"),
    ),
    ("elementwise kernels are fused, and the layout is not converted", ("unfused_elementwise", "layout_conversions")),
    (
        "memory neither grows, nor is reallocated in every step, nor is fragmented",
        ("memory_growth", "allocator_thrash", "fragmentation"),
    ),
)


@dataclass(frozen=True)
class ChecklistItem:
    """One item of the checklist: its state, and the evidence for it."""

    check: str
    state: str
    evidence: str


def checklist_items(run: Run) -> tuple[ChecklistItem, ...]:
    """Judge every item of the checklist by this run."""
    diagnosis = diagnose(run)
    return tuple(_judge(check, rules, diagnosis) for check, rules in CHECKS)


def checklist(*runs: Run, names: Sequence[str] = ()) -> View:
    """Show the checklist: with the evidence for one run, or with the states of several runs side by side.

    `names`: labels of the runs, by default their recorded names.
    """
    items_by_run, names = [checklist_items(run) for run in runs], tuple(names) or tuple(run.name for run in runs)
    answers = tuple(
        Answer(claim=_summary(name, each), leading=True) for name, each in zip(names, items_by_run, strict=True)
    )
    if len(runs) == 1:
        header: tuple[str, ...] = ("item", "state", "evidence")
        rows = tuple(Row((item.check, _unbroken(item.state), item.evidence)) for item in items_by_run[0])
    else:
        header = ("item", *names)
        rows = tuple(
            Row((each[0].check, *(_unbroken(item.state) for item in each))) for each in zip(*items_by_run, strict=True)
        )
    caption = "; ".join(f"{name}: {run.source}" for name, run in zip(names, runs, strict=True))
    table = TableBlock(header=header, rows=rows, text_columns=len(header), caption=f"Run {caption}.")
    return View(Sheet(f"gpulab: checklist of {', '.join(names)}", (*answers, table)))


def _summary(name: str, judged_items: tuple[ChecklistItem, ...]) -> str:
    count = {state: sum(item.state == state for item in judged_items) for state in (OPEN, DONE, UNKNOWN)}
    return f"{name}: {count[OPEN]} to do, {count[DONE]} with nothing to do now, {count[UNKNOWN]} unknown."


def _unbroken(state: str) -> str:
    return state.replace(" ", "\N{NO-BREAK SPACE}")


def _judge(check: str, rules: Iterable[str], diagnosis: Diagnosis) -> ChecklistItem:
    rules = tuple(rules)
    findings = [finding for finding in diagnosis.findings if finding.rule in rules]
    for finding in findings:
        if not finding.informs_only:
            return ChecklistItem(check, OPEN, finding.claim)
    if findings:  # only asides: information, not a problem
        return ChecklistItem(check, DONE, findings[0].claim)
    unjudged = [each for each in diagnosis.unjudged if each.rule in rules]
    if len(unjudged) == len(rules):
        return ChecklistItem(check, UNKNOWN, unjudged[0].reason)
    judging = len(rules) - len(unjudged)
    return ChecklistItem(
        check, DONE, f"{judging} of {len(rules)} rules could judge the run; none found anything worth a change now"
    )
