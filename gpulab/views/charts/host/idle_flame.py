"""Flame chart of idle device time: by ledger part, operator and Python line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Rectangle

from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import Ledger, build_ledger
from gpulab.run import Run
from gpulab.views.charts.drawing.chart import WIDTH_IN, Chart, missing_data_chart, single_plot
from gpulab.views.charts.drawing.shades import pale_shade, readable_shade, text_colour_on
from gpulab.views.charts.drawing.style import BACKGROUND, SMALL_PT
from gpulab.views.charts.drawing.text_layout import break_lines, shorten_to_width, text_width_in
from gpulab.views.charts.host.idle_tree import IdleOperator, IdlePart, idle_parts
from gpulab.views.report.ledger_table import DEVICE_LABELS
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.wording import Scale, clean, count, percent, scale, shorten

MAX_ROWS = 40
MIN_LABEL_IN, MAX_LINES = 0.42, 3  # narrower boxes have no label; the table has their names
_PLOT_IN, _PAD_IN = 0.965 * WIDTH_IN, 0.08
_DRAWN_FRAC = 0.0015  # of all idle time: narrower boxes are not drawn


def idle_flame(run: Run) -> Chart:
    """Show host activity while the device is idle, in the interior steps: by ledger part, operator and line.

    From the ledger and the recorded operators. The width of a box is its time, and the boxes of a row sum to the row
    above, except for lines: for each operator only the line with most time is shown, from recorded or sampled frames.
    A part is the activity at the time of the idle gap; earlier activity that drained the queue is not shown.
    """
    run_steps = find_steps(run)
    accounts = build_ledger(run, run_steps)
    if accounts is None:
        why = "no step was recorded with events"
        fix = "Record the loop with %%gpuprofile, not with --level sensors, and let it run for at least twelve steps"
        return missing_data_chart(run, "Idle time", why, fix)
    parts = idle_parts(run, accounts)
    if not parts:
        return _never_idle(run, accounts)
    unit = scale(sum(part.ns for part in parts), figures=4)
    return single_plot(
        _answer(accounts, parts),
        lambda axes: _draw(axes, accounts, parts, unit),
        source=run,
        alt=_alt(run, parts),
        table=_table(run, parts, unit),
    )


def _answer(accounts: Ledger, parts: Sequence[IdlePart]) -> str:
    first, count = parts[0], len(accounts.step_ns)
    idle_ns = sum(part.ns for part in parts)
    unit = scale(idle_ns / count)
    return (
        f"{_subject(accounts)} {percent(accounts.idle_frac)} of {_steps(accounts)}, mostly "
        f"{first.part.label}: {unit.number(first.ns / count)} of {unit(idle_ns / count)}{' per step' * (count > 1)}"
    )


def _subject(accounts: Ledger) -> str:
    idle = DEVICE_LABELS[accounts.device][1]
    return idle if accounts.device == "gpu" else f"CPU {idle}"


def _steps(accounts: Ledger) -> str:
    count = len(accounts.step_ns)
    return f"{count} complete steps" if count > 1 else "the one complete step"


@dataclass(frozen=True)
class _Box:
    text: str
    start_ns: int
    ns: int
    row: int
    face: str
    edge: str = BACKGROUND


def _boxes(accounts: Ledger, parts: Sequence[IdlePart]) -> Iterator[_Box]:
    start_ns = 0
    total = sum(part.ns for part in parts)
    yield _Box(f"{_subject(accounts)} {scale(total)(total)}", 0, total, 0, NEUTRAL)
    for part in parts:
        face = readable_shade(colour(part.part.key))
        yield _Box(part.part.label, start_ns, part.ns, 1, face)
        operator_start_ns = start_ns
        for operator in part.operators:
            yield _Box(_short(operator), operator_start_ns, operator.ns, 2, pale_shade(face, 0.45), face)
            if operator.frame is not None:
                line_ns = round(operator.frame.frac * operator.ns)
                yield _Box(_short_line(operator), operator_start_ns, line_ns, 3, pale_shade(face, 0.2), face)
            operator_start_ns += operator.ns
        start_ns += part.ns


def _draw(axes: Axes, accounts: Ledger, parts: Sequence[IdlePart], unit: Scale) -> None:
    boxes = list(_boxes(accounts, parts))
    total = boxes[0].ns
    rows = ["idle", "part", "operator", "line"][: max(box.row for box in boxes) + 1]
    axes.set_xlim(0, total / unit.unit_ns)
    axes.set_ylim(len(rows), 0)
    axes.set_yticks([row + 0.48 for row in range(len(rows))], rows)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(f"{unit.unit} of idle time in {_steps(accounts)}")
    figure = axes.get_figure()
    figure = figure.figure if isinstance(figure, SubFigure) else figure
    assert isinstance(figure, Figure)
    per_ns = (_PLOT_IN - max(text_width_in(row, 8.5) for row in rows) - 0.2) / total
    for box in boxes:
        if box.ns < _DRAWN_FRAC * total:
            continue
        x, width = box.start_ns / unit.unit_ns, box.ns / unit.unit_ns
        axes.add_patch(Rectangle((x, box.row), width, 0.96, facecolor=box.face, edgecolor=box.edge, linewidth=0.8))
        if text := _label(figure, box.text, box.ns * per_ns - 2 * _PAD_IN):
            middle = (x + width / 2, box.row + 0.48)
            axes.text(*middle, text, ha="center", va="center", fontsize=SMALL_PT, color=text_colour_on(box.face))


def _label(figure: Figure, label: str, box_in: float) -> str:
    """Shorten a label, or break it between words, so that it fits a box; "" for a narrow box."""
    if box_in < MIN_LABEL_IN:
        return ""
    if max(text_width_in(word, SMALL_PT) for word in label.split(" ")) > box_in:
        return shorten_to_width(label, box_in, SMALL_PT)
    max_in = MAX_LINES * box_in
    text = label
    while (lines := break_lines(figure, text, SMALL_PT, box_in / WIDTH_IN)).count("\n") >= MAX_LINES:
        max_in *= 0.93
        text = shorten_to_width(label, max_in, SMALL_PT)
    return lines


def _short(operator: IdleOperator) -> str:
    """Return the operator without namespace and thread, which the table has."""
    if operator.others:
        return f"{operator.others:,} others"
    return clean(operator.name.removeprefix("aten::"), 80) if operator.name is not None else "outside operators"


def _full_name(run: Run, operator: IdleOperator) -> str:
    if operator.others:
        return f"{operator.others:,} others"
    name = clean(operator.name, 80) if operator.name is not None else "outside operators"
    return name if operator.thread == run.main_thread else f"{name} · {_thread(run, operator.thread)}"


def _thread(run: Run, thread: int) -> str:
    name = run.threads[thread] if 0 <= thread < len(run.threads) else f"thread {thread}"
    return clean(name, 40)


def _short_line(operator: IdleOperator) -> str:
    """Return the line without its folders."""
    assert operator.frame is not None
    return clean(operator.frame.name.rpartition("/")[2], 80)


def _line(operator: IdleOperator) -> str:
    assert operator.frame is not None
    samples = f" ({count(operator.frame.samples, 'sample')})" if operator.frame.samples is not None else ""
    return f"{clean(operator.frame.name, 80)}{samples}"


def _alt(run: Run, parts: Sequence[IdlePart]) -> str:
    total = sum(part.ns for part in parts)
    shares = ", ".join(f"{part.part.label} {percent(part.ns / total, 1)}" for part in parts)
    largest = parts[0].operators[0]
    first = f"Of {parts[0].part.label}, {percent(largest.ns / parts[0].ns)} is {_full_name(run, largest)}"
    line = f", mostly at {_line(largest)}" if largest.frame is not None else ""
    no_frames = not any(operator.frame for part in parts for operator in part.operators)
    lines = " No Python frames were recorded." if no_frames else ""
    return f"Flame chart of idle time. Parts: {shares}. {shorten(first, 300)}{line}.{lines}"


def _table(run: Run, parts: Sequence[IdlePart], unit: Scale) -> TableBlock:
    total = sum(part.ns for part in parts)
    rows = []
    for part in parts:
        rows.append(_row(part.part.label, "", part.ns, total, unit, key=part.part.key, kind="group"))
        for operator in part.operators:
            line = f"{_line(operator)}, {percent(operator.frame.frac)} of it" if operator.frame else ""
            rows.append(_row(_full_name(run, operator), line, operator.ns, total, unit))
    omitted = len(rows) - MAX_ROWS
    if omitted > 0:
        rows = [row for row in rows if row.kind == "group" or row in rows[:MAX_ROWS]]
    caption = "The parts sum to the idle time exactly, and the operators to their part."
    caption += f" {count(omitted, 'small operator')} not listed." if omitted > 0 else ""
    rows.append(_row("idle", "", total, total, unit, kind="total"))
    header = ("while the host was", "line", unit.unit, "share")
    return TableBlock(header=header, rows=tuple(rows), text_columns=2, caption=caption)


def _row(name: str, line: str, ns: int, total: int, unit: Scale, *, key: str | None = None, kind: str = "plain") -> Row:
    return Row((name, line, unit.number(ns), percent(ns / total, 1)), key=key, kind=kind)


def _never_idle(run: Run, accounts: Ledger) -> Chart:
    def draw(axes: Axes) -> None:
        axes.set_axis_off()
        axes.barh(0, 1, color=colour("compute"), height=0.5)
        axes.text(0.5, 0, "busy 100 %", ha="center", va="center", color=text_colour_on(colour("compute")))

    busy, idle = DEVICE_LABELS[accounts.device]
    total = scale(float(accounts.step_ns.sum()))(float(accounts.step_ns.sum()))
    table = TableBlock(header=("", "time"), rows=(Row((busy, total)), Row((idle, "0"))))
    answer = f"No idle time: {_subject(accounts).split()[0]} busy throughout {_steps(accounts)}"
    return single_plot(answer, draw, source=run, alt=f"Idle time is 0 of {total}.", table=table, height_in=1.7)
