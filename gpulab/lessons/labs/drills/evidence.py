"""What there is to look at in an anonymous run, without a word on what is wrong: ledger, picture, kernels, counters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpulab.analysis.kernels.table import kernel_table
from gpulab.lessons.answer import Said
from gpulab.lessons.labs.drills import drills
from gpulab.lessons.labs.drills.counters import BYTES, COUNTERS, Counter
from gpulab.lessons.labs.drills.verdicts import problem
from gpulab.questions import diagnose
from gpulab.run import Run
from gpulab.views.report.headline import headline
from gpulab.views.report.ledger_table import ESTIMATED, RECORDED, accounts
from gpulab.views.report.provenance import origin
from gpulab.views.sheet.sheet import Block, Facts, Line, Row, Section, Sheet, Table
from gpulab.views.sheet.step_picture import picture
from gpulab.views.sheet.view import View
from gpulab.wording import count, duration, number, percent, sentence, shorten

if TYPE_CHECKING:
    from gpulab.lessons.lesson_lab import Lab

KERNELS, MOST_NAME = 5, 60


def evidence(which: int | str) -> View:
    """The evidence of a case by its number, or of another recorded run by its name."""
    run = drills.case(which) if isinstance(which, int) else drills.beside(which)
    called = f', which its owner calls "{drills.CASES[which - 1].called}"' if isinstance(which, int) else ""
    head = Line(f"{run.name}{called}: {run.source}{_host(run)}.")
    return View(Sheet(f"gpulab: evidence of {run.name}", (head, *_sections(run, which))))


def drill(lab: Lab, key: str, pick: object) -> tuple[View | Said, ...]:
    """A case as it is worked on: its evidence, what is said to an answer, and the verdict once all of it is right."""
    return (evidence(_case(key).number), lab.check(key, pick), *revealed(key, pick))


def revealed(key: str, pick: object) -> tuple[View, ...]:
    """What the report says first of a case, once all three words of an answer are right; its ledger is evidence."""
    one = _case(key)
    if pick is None or problem(one, pick) is not None:
        return ()
    told = diagnose(drills.case(one.number))
    said = replace(headline(told), picture=None, notes=())  # the picture is above, without a shade
    head, foot = Line("What the report says of it:", soft=True), Line(sentence(origin(told.run)), soft=True)
    return (View(Sheet(f"gpulab: verdict on {told.run.name}", (head, said, foot))),)


def _case(key: str) -> drills.Case:
    return next(each for each in drills.CASES if each.key == key)


def table() -> View:
    """The counters of all twelve beside one another; a dash where a run cannot tell."""
    numbers = [each.number for each in drills.CASES]
    rows = tuple(
        Row((name, *("-" if (value := drills.reads(number)[name]) is None else _short(counter, value)
                     for number in numbers)))
        for name, counter in COUNTERS.items()
    )  # fmt: skip
    caption = "Shares of a step, in %; to_gpu, to_host and growth in MiB a step; - is absent."
    return View(
        Sheet(
            "gpulab: counters of twelve runs", (Table(header=("case", *map(str, numbers)), rows=rows, caption=caption),)
        )
    )


def catalogue() -> View:
    """The twelve: what their owners call them, and where each comes from."""
    rows = [Row((str(each.number), each.called, str(drills.case(each.number).source))) for each in drills.CASES]
    table = Table(header=("case", "its owner calls it", "source"), rows=tuple(rows), left=3)
    return View(Sheet("gpulab: twelve runs", (table,)))


def words() -> View:
    """The words of an answer: causes, first actions, counters."""
    counters = Facts(tuple((name, counter.means) for name, counter in COUNTERS.items()))
    return View(
        Sheet(
            "gpulab: the words of an answer",
            (
                Section("Causes, by gpulab's names for them", (Facts(tuple(drills.CAUSES.items())),)),
                Section("First actions", (Facts(tuple(drills.ACTIONS.items())),)),
                Section("Counters", (counters,)),
            ),
        )
    )


def _sections(run: Run, which: int | str) -> Iterator[Block]:
    silent = replace(diagnose(run), findings=(), masked=())  # nothing is shaded, nothing named
    if silent.ledger is not None:
        how = ESTIMATED if run.source.how == "virtual" else RECORDED
        yield Section("Where the step time goes", accounts(silent.ledger, how=how))
    few = picture(silent)
    if few is not None:
        yield Section("A few steps", (few,))
    kernels = _kernels(run)
    if kernels is not None:
        yield Section("The kernels that take most time", (kernels,))
    values = drills.reads(which)
    told = tuple((name, counter.told(values[name])) for name, counter in COUNTERS.items() if values[name] is not None)
    absent = ", ".join(name for name in COUNTERS if values[name] is None)
    yield Section("Counters", (Facts(told), Line(f"Absent: {absent}.", soft=True)))


def _host(run: Run) -> str:
    """The cores and the workers of a run whose times are those of a CPU; a virtual GPU has neither."""
    if run.source.how == "virtual" or run.machine.cores_allowed is None:
        return ""
    workers = len(np.unique(run.worker_rows["worker"]))
    return f", {count(int(run.machine.cores_allowed), 'core')}, {count(workers, 'worker')}"


def _short(counter: Counter, value: float) -> str:
    """A reading without its unit, as narrow as it can be."""
    if counter.name in BYTES:
        return number(value / 2**20, 2)
    return percent(value).removesuffix(" %")


def _kernels(run: Run) -> Table | None:
    rows = kernel_table(run)
    if not len(rows):
        return None
    names, whole = rows.words("name").to_list(), max(1, int(rows["total_ns"].sum()))
    shown = [
        Row(
            (
                shorten(names[place] or "without a name", MOST_NAME),
                f"{int(rows['count'][place]):,}",
                duration(float(rows["median_ns"][place])),
                percent(int(rows["total_ns"][place]) / whole),
            )
        )
        for place in range(min(KERNELS, len(rows)))
    ]
    return Table(header=("", "how often", "the median one", "of kernel time"), rows=tuple(shown))
