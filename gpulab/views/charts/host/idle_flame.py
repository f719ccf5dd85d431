"""The idle time of the device as a flame: which part of the ledger, in which operator, at which line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gpulab.analysis.steps.detection import steps
from gpulab.analysis.steps.ledger import Ledger, ledger
from gpulab.run import Run
from gpulab.views.charts.drawing.chart import WIDTH_IN, Chart, chart, nothing_to_draw
from gpulab.views.charts.drawing.lettering import broken, fitting, width_in
from gpulab.views.charts.drawing.shades import ink_on, pale, readable
from gpulab.views.charts.drawing.style import PAPER, SMALL_PT
from gpulab.views.charts.host.idle_tree import Blamed, Held, blamed
from gpulab.views.report.ledger_table import DEVICE
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.sheet import Row, Table
from gpulab.wording import Scale, clean, count, percent, scale, shorten

MOST_ROWS = 40
LEAST_LABEL_IN, MOST_LINES = 0.42, 3  # a box narrower than this stays empty: its name stands in the table
_PLOT_IN, _PAD_IN = 0.965 * WIDTH_IN, 0.08
_DRAWN_FRAC = 0.0015  # of all idle time: narrower boxes would be a line


def idle_flame(run: Run) -> Chart:
    """What the host did while the device was idle, in the interior steps: part, then operator, then line.

    From the ledger and the recorded operators; a box is as wide as its time, and the boxes of a row sum to the row
    above, but for lines: of each operator only the one that held most is told, by recorded or sampled frames. A part
    is what stood in the device's way at that moment; what came before, and made the queue run dry, it does not tell.
    """
    found = steps(run)
    accounts = ledger(run, found)
    if accounts is None:
        why = "no step was recorded with events"
        fix = "Record the loop with %%gpuprofile, not with --level sensors, and let it run for at least six steps"
        return nothing_to_draw(run, "Idle time", why, fix)
    told = blamed(run, accounts)
    if not told:
        return _never_idle(run, accounts)
    unit = scale(sum(each.ns for each in told), figures=4)
    return chart(
        _answer(accounts, told),
        lambda axes: _draw(axes, run, accounts, told, unit),
        source=run,
        alt=_words(run, told),
        table=_table(run, told, unit),
    )


def _answer(accounts: Ledger, told: Sequence[Blamed]) -> str:
    first, count = told[0], len(accounts.step_ns)
    idle_ns = sum(each.ns for each in told)
    unit = scale(idle_ns / count)
    return (
        f"{_subject(accounts)} {percent(accounts.idle_frac)} of {_steps(accounts)}, most of it "
        f"{first.part.label}: {unit.number(first.ns / count)} of {unit(idle_ns / count)}{' a step' * (count > 1)}"
    )


def _subject(accounts: Ledger) -> str:
    idle = DEVICE[accounts.device][1]
    return idle if accounts.device == "gpu" else f"CPU {idle}"


def _steps(accounts: Ledger) -> str:
    count = len(accounts.step_ns)
    return f"{count} interior steps" if count > 1 else "the one interior step"


@dataclass(frozen=True)
class _Box:
    words: str
    start_ns: int
    ns: int
    row: int
    face: str
    edge: str = PAPER


def _boxes(accounts: Ledger, told: Sequence[Blamed]) -> Iterator[_Box]:
    at = 0
    total = sum(each.ns for each in told)
    yield _Box(f"{_subject(accounts)} {scale(total)(total)}", 0, total, 0, NEUTRAL)
    for each in told:
        face = readable(colour(each.part.key))
        yield _Box(each.part.label, at, each.ns, 1, face)
        inside = at
        for held in each.held:
            yield _Box(_short(held), inside, held.ns, 2, pale(face, 0.45), face)
            if held.frame is not None:
                yield _Box(_place(held), inside, round(held.frame.frac * held.ns), 3, pale(face, 0.2), face)
            inside += held.ns
        at += each.ns


def _draw(axes: Axes, run: Run, accounts: Ledger, told: Sequence[Blamed], unit: Scale) -> None:
    boxes = list(_boxes(accounts, told))
    total = boxes[0].ns
    rows = ["idle", "part", "operator", "line"][: max(box.row for box in boxes) + 1]
    axes.set_xlim(0, total / unit.unit_ns)
    axes.set_ylim(len(rows), 0)
    axes.set_yticks([row + 0.48 for row in range(len(rows))], rows)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"{unit.unit} of idle time in {_steps(accounts)}")
    figure = axes.get_figure(root=True)
    assert figure is not None
    per_ns = (_PLOT_IN - max(width_in(row, 8.5) for row in rows) - 0.2) / total
    for box in boxes:
        if box.ns < _DRAWN_FRAC * total:
            continue
        x, width = box.start_ns / unit.unit_ns, box.ns / unit.unit_ns
        axes.add_patch(Rectangle((x, box.row), width, 0.96, facecolor=box.face, edgecolor=box.edge, linewidth=0.8))
        if text := _label(figure, box.words, box.ns * per_ns - 2 * _PAD_IN):
            middle = (x + width / 2, box.row + 0.48)
            axes.text(*middle, text, ha="center", va="center", fontsize=SMALL_PT, color=ink_on(box.face))


def _label(figure: Figure, words: str, room_in: float) -> str:
    """As much of the words as a box has room for; nothing in a narrow one."""
    if room_in < LEAST_LABEL_IN:
        return ""
    if width_in(words, SMALL_PT) <= room_in:
        return words
    most_in = MOST_LINES * room_in
    text = words
    while (lines := broken(figure, text, SMALL_PT, room_in / WIDTH_IN)).count("\n") >= MOST_LINES:
        most_in *= 0.93
        text = fitting(words, most_in, SMALL_PT)
    return lines


def _short(held: Held) -> str:
    """The operator without its family and its thread, which the table tells."""
    if held.others:
        return f"{held.others:,} others"
    return clean(held.name.removeprefix("aten::"), 80) if held.name is not None else "in no operator"


def _holder(run: Run, held: Held) -> str:
    if held.others:
        return f"{held.others:,} others"
    name = clean(held.name, 80) if held.name is not None else "in no operator"
    return name if held.thread == run.main_thread else f"{name} · {_thread(run, held.thread)}"


def _thread(run: Run, thread: int) -> str:
    named = run.threads[thread] if 0 <= thread < len(run.threads) else f"thread {thread}"
    return clean(named, 40)


def _place(held: Held) -> str:
    """The line without its folders."""
    assert held.frame is not None
    return clean(held.frame.name.rpartition("/")[2], 80)


def _line(held: Held) -> str:
    assert held.frame is not None
    samples = f" ({count(held.frame.samples, 'sample')})" if held.frame.samples is not None else ""
    return f"{clean(held.frame.name, 80)}{samples}"


def _words(run: Run, told: Sequence[Blamed]) -> str:
    total = sum(each.ns for each in told)
    parts = ", ".join(f"{each.part.label} {percent(each.ns / total, 1)}" for each in told)
    most = told[0].held[0]
    first = f"Of {told[0].part.label}, {percent(most.ns / told[0].ns)} is {_holder(run, most)}"
    line = f", mostly at {_line(most)}" if most.frame is not None else ""
    lines = "" if any(held.frame for each in told for held in each.held) else " No Python frames were recorded."
    return f"A flame of the idle time. Its parts: {parts}. {shorten(first, 300)}{line}.{lines}"


def _table(run: Run, told: Sequence[Blamed], unit: Scale) -> Table:
    total = sum(each.ns for each in told)
    rows = []
    for each in told:
        rows.append(_row(each.part.label, "", each.ns, total, unit, key=each.part.key, kind="group"))
        for held in each.held:
            line = f"{_line(held)}, {percent(held.frame.frac)} of it" if held.frame else ""
            rows.append(_row(_holder(run, held), line, held.ns, total, unit))
    left_out = len(rows) - MOST_ROWS
    if left_out > 0:
        rows = [row for row in rows if row.kind == "group" or row in rows[:MOST_ROWS]]
    caption = "The parts sum to all idle time exactly, and the operators of each to the part."
    caption += f" {count(left_out, 'small operator')} left out." if left_out > 0 else ""
    rows.append(_row("idle", "", total, total, unit, kind="total"))
    header = ("while the host was", "line", unit.unit, "share")
    return Table(header=header, rows=tuple(rows), left=2, caption=caption)


def _row(name: str, line: str, ns: int, total: int, unit: Scale, *, key: str | None = None, kind: str = "plain") -> Row:
    return Row((name, line, unit.number(ns), percent(ns / total, 1)), key=key, kind=kind)


def _never_idle(run: Run, accounts: Ledger) -> Chart:
    def draw(axes: Axes) -> None:
        axes.set_axis_off()
        axes.barh(0, 1, color=colour("compute"), height=0.5)
        axes.text(0.5, 0, "busy 100 %", ha="center", va="center", color=ink_on(colour("compute")))

    busy, idle = DEVICE[accounts.device]
    took = scale(float(accounts.step_ns.sum()))(float(accounts.step_ns.sum()))
    table = Table(header=("", "time"), rows=(Row((busy, took)), Row((idle, "0"))))
    answer = f"No idle time: {_subject(accounts).split()[0]} busy in all of {_steps(accounts)}"
    return chart(answer, draw, source=run, alt=f"Idle time is 0 of {took}.", table=table, height_in=1.7)
