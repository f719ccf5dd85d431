"""Evidence of an anonymous run, without a diagnosis: ledger, picture of the steps, kernels, counters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpulab.analysis.kernels.kernel_table import kernel_table
from gpulab.lessons.labs.drills import drills
from gpulab.lessons.labs.drills.answer_checks import answer_problem
from gpulab.lessons.labs.drills.cases import ALL_CASES, MORE_ACTIONS, MORE_CAUSES
from gpulab.lessons.labs.drills.run_counters import ALL_COUNTERS, BYTES, RUN_COUNTERS, RunCounter
from gpulab.lessons.stable_view import LessonView
from gpulab.questions import diagnose
from gpulab.run import Run
from gpulab.views.report.headline import headline
from gpulab.views.report.ledger_table import ledger_blocks, method_of
from gpulab.views.sheet.sheet import Block, Facts, Line, Row, Section, Sheet, TableBlock
from gpulab.views.sheet.step_picture import step_timeline
from gpulab.views.sheet.view import View
from gpulab.wording import count, duration, number, percent, shorten

if TYPE_CHECKING:
    from gpulab.lessons.lesson_lab import Lab

KERNELS, MOST_NAME = 4, 48


def case_evidence(number_or_name: int | str) -> View:
    """Show the evidence of a case by its number, or of another run by its name."""
    run = drills.case(number_or_name) if isinstance(number_or_name, int) else drills.named_run(number_or_name)
    owner_name = (
        f' (its owner calls it "{ALL_CASES[number_or_name - 1].owner_name}")' if isinstance(number_or_name, int) else ""
    )
    name = f"case {number_or_name}" if isinstance(number_or_name, int) else run.name
    head = Line(f"{name}{owner_name}: {run.source}{_host(run)}.")
    return View(Sheet(f"gpulab: evidence of {name}", (head, *_sections(run, number_or_name))))


def drill_views(lab: Lab, key: str, pick: object, *, brief: bool = False) -> tuple[View | LessonView, ...]:
    """Show a case: its evidence, the feedback on an answer, and gpulab's verdict once the answer is correct.

    `brief`: without the evidence once the answer is correct.
    """
    verdict = report_verdict(key, pick)
    evidence = () if brief and verdict else (case_evidence(_case(key).number),)
    return (*evidence, lab.check(key, pick), *verdict)


def report_verdict(key: str, pick: object) -> tuple[View, ...]:
    """Show the first finding of the report on a case, once all three words of the answer are correct."""
    drill_case = _case(key)
    if pick is None or answer_problem(drill_case, pick) is not None:
        return ()
    diagnosis = diagnose(drills.case(drill_case.number))
    first = headline(diagnosis)
    lines = (first.claim, *first.evidence[:2], *(f"{name}: {value}" for name, value in first.facts[:1]))
    head = Line(f"The report on this run (all of it: gpulab.report(drills.case({drill_case.number}))):", soft=True)
    return (View(Sheet(f"gpulab: verdict on case {drill_case.number}", (head, *map(Line, lines)))),)


def _case(key: str) -> drills.DrillCase:
    return next(each for each in ALL_CASES if each.key == key)


def counter_table() -> View:
    """Tabulate the counters of all twelve cases; a dash means absent."""
    numbers = [each.number for each in drills.CASES]
    rows = tuple(
        Row((name, *("-" if (value := drills.counter_values(number)[name]) is None else _short(counter, value)
                     for number in numbers)))
        for name, counter in RUN_COUNTERS.items()
    )  # fmt: skip
    caption = "Fractions in %; to_gpu, to_host and growth in MiB per step; - means absent."
    return View(
        Sheet(
            "gpulab: counters of twelve runs",
            (TableBlock(header=("case", *map(str, numbers)), rows=rows, caption=caption),),
        )
    )


def case_catalogue() -> View:
    """List the twelve cases: the owners' names, and the source of each run."""
    rows = [Row((str(each.number), each.owner_name, str(drills.case(each.number).source))) for each in drills.CASES]
    table = TableBlock(header=("case", "its owner calls it", "source"), rows=tuple(rows), text_columns=3)
    return View(Sheet("gpulab: twelve runs", (table,)))


def answer_terms(*, recorded: bool = False) -> View:
    """List the words for an answer: causes, first actions, counters; with those for cases 13 to 16 if `recorded`."""
    causes = {**drills.CAUSES, **(MORE_CAUSES if recorded else {})}
    actions = {**drills.ACTIONS, **(MORE_ACTIONS if recorded else {})}
    counters = ALL_COUNTERS if recorded else RUN_COUNTERS
    descriptions = Facts(tuple((name, counter.description) for name, counter in counters.items()))
    return View(
        Sheet(
            "gpulab: the words of an answer",
            (
                Section("Causes (gpulab's rule names)", (Facts(tuple(causes.items())),)),
                Section("First actions", (Facts(tuple(actions.items())),)),
                Section("Counters", (descriptions,)),
            ),
        )
    )


def _sections(run: Run, number_or_name: int | str) -> Iterator[Block]:
    undiagnosed = replace(diagnose(run), findings=(), masked=())  # without shading and diagnosis
    if undiagnosed.ledger is not None and undiagnosed.step is not None:
        method = method_of(run, undiagnosed.steps)
        yield Section("Where the step time goes", ledger_blocks(undiagnosed.ledger, undiagnosed.step, method=method))
    step_picture = step_timeline(undiagnosed)
    if step_picture is not None:
        yield Section("Timeline", (step_picture,))
    kernels = _kernels(run)
    if kernels is not None:
        yield Section("Kernels with the most total time", (kernels,))
    values = drills.counter_values(number_or_name)
    recorded = isinstance(number_or_name, int) and number_or_name > len(drills.CASES)
    counters = ALL_COUNTERS if recorded else RUN_COUNTERS
    readings = tuple(
        (name, counter.format(values[name])) for name, counter in counters.items() if values[name] is not None
    )
    absent = ", ".join(name for name in counters if values[name] is None)
    yield Section("Counters", (Facts(readings), Line(f"Absent: {absent}.", soft=True)))


def _host(run: Run) -> str:
    """Describe the cores and DataLoader workers of a run; empty for a virtual GPU, which has neither."""
    if run.source.how == "virtual" or run.machine.cores_allowed is None:
        return ""
    workers = len(np.unique(run.worker_rows["worker"]))
    return f", {count(int(run.machine.cores_allowed), 'core')}, {count(workers, 'worker')}"


def _short(counter: RunCounter, value: float) -> str:
    """Format a reading without its unit, as short as possible."""
    if counter.name in BYTES:
        return number(value / 2**20, 2)
    return percent(value).removesuffix(" %")


def _kernels(run: Run) -> TableBlock | None:
    rows = kernel_table(run)
    if not len(rows):
        return None
    names, total_ns = rows.text("name").to_list(), max(1, int(rows["total_ns"].sum()))
    table_rows = [
        Row(
            (
                shorten(names[index] or "unnamed", MOST_NAME),
                f"{int(rows['count'][index]):,}",
                duration(float(rows["median_ns"][index])),
                percent(int(rows["total_ns"][index]) / total_ns),
            )
        )
        for index in range(min(KERNELS, len(rows)))
    ]
    return TableBlock(header=("", "calls", "median", "of kernel time"), rows=tuple(table_rows))
