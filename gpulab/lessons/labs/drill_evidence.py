"""What there is to look at in an anonymous run, without a word on what is wrong: ledger, picture, kernels, counters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpulab.analysis.kernels import kernel_table
from gpulab.lessons.labs import drills
from gpulab.lessons.labs.drill_counters import COUNTERS
from gpulab.questions import diagnose
from gpulab.run import Run
from gpulab.views.accounts import ESTIMATED, RECORDED, accounts
from gpulab.views.picture import picture
from gpulab.views.report import Report, report
from gpulab.views.sheet import Block, Facts, Line, Row, Section, Sheet, Table
from gpulab.views.view import View
from gpulab.views.wording import duration, percent, shortened

KERNELS, MOST_NAME = 5, 60


def evidence(which: int | str) -> View:
    """The evidence of a case by its number, or of another recorded run by its name."""
    run = drills.case(which) if isinstance(which, int) else drills.beside(which)
    called = f', which its owner calls "{drills.CASES[which - 1].called}"' if isinstance(which, int) else ""
    head = Line(f"{run.name}{called}: {run.source}.")
    return View(Sheet(f"gpulab: evidence of {run.name}", (head, *_sections(run, which))))


def revealed(key: str, pick: object) -> tuple[Report, ...]:
    """The report of a case once all three words of an answer are right, without what could not be judged."""
    one = next(each for each in drills.CASES if each.key == key)
    if pick is None or one.problem(pick) is not None:
        return ()
    return (report(replace(diagnose(drills.case(one.number)), unjudged=())),)


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
        yield Section("Where a step goes", accounts(silent.ledger, how=how))
    few = picture(silent)
    if few is not None:
        yield Section("A few steps", (few,))
    kernels = _kernels(run)
    if kernels is not None:
        yield Section("The kernels that take most time", (kernels,))
    values = drills.reads(which)
    told = tuple((name, counter.told(values[name])) for name, counter in COUNTERS.items())
    yield Section("Counters", (Facts(told),))


def _kernels(run: Run) -> Table | None:
    rows = kernel_table(run)
    if not len(rows):
        return None
    names, whole = rows.words("name").to_list(), max(1, int(rows["total_ns"].sum()))
    shown = [
        Row(
            (
                shortened(names[place] or "without a name", MOST_NAME),
                f"{int(rows['count'][place]):,}",
                duration(float(rows["median_ns"][place])),
                percent(int(rows["total_ns"][place]) / whole),
            )
        )
        for place in range(min(KERNELS, len(rows)))
    ]
    return Table(header=("", "how often", "the median one", "of kernel time"), rows=tuple(shown))
