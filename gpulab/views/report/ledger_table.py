"""The ledger of a run as a bar and a table: where the time of a step goes."""

from __future__ import annotations

from gpulab.analysis.steps.ledger import Ledger
from gpulab.views.sheet.sheet import Bar, Block, Line, Row, Segment, TableBlock
from gpulab.wording import Scale, count, percent, scale

MIN_SEGMENT_FRAC = 0.005  # narrower parts are drawn as one "all else" segment; the table lists each
HOW_TO_MARK_STEPS = "If it is a loop, call gpulab.step(), or step() of torch.profiler, at the end of each iteration."
DEVICE_LABELS = {"gpu": ("GPU busy", "GPU idle"), "cpu": ("operators >= 10 us", "other time")}
_ROUNDED = " (apart from rounding in this table)"
RECORDED, ESTIMATED = "recorded with the profiler on", "estimated"


def ledger_blocks(ledger: Ledger, *, has_steps: bool = True, method: str = RECORDED) -> tuple[Block, ...]:
    """Return the bar, the table and a line with the parts that took no time.

    Without a training loop (`looped=False`) they cover the whole recording. `method`: RECORDED or ESTIMATED.
    """
    unit = scale(float(ledger.step_ns.mean()), figures=4)
    present = [part for part in ledger.parts if ledger.part_ns[part.key].any()]
    absent = [part.label for part in ledger.parts if part not in present]
    rows = []
    for busy, label in zip((True, False), DEVICE_LABELS[ledger.device], strict=True):
        parts = [part for part in present if part.busy is busy]
        if ledger.device == "cpu" and busy:
            rows.append(_row(ledger, unit, label, "group", "compute", colour="compute"))
            continue
        rows.append(_row(ledger, unit, label, "group", *(part.key for part in parts)))
        rows += [_row(ledger, unit, part.label, "plain", part.key, colour=part.key) for part in parts]
    rows.append(_row(ledger, unit, "step" if has_steps else "all recorded", "total", *(part.key for part in present)))
    step_count = len(ledger.step_ns)
    header = ("", f"{unit.unit} per step" if has_steps else unit.unit, "share", *(("range",) if step_count > 1 else ()))
    table = TableBlock(header=header, rows=tuple(rows), caption=_caption(step_count, has_steps, method))
    no_time = (Line(f"No time went to: {', '.join(absent)}.", soft=True),) if absent else ()
    return ledger_bar(ledger, "Where the step time goes" if has_steps else "Where the time goes"), table, *no_time


def ledger_bar(ledger: Ledger, title: str, *, name: str = "", length: float = 1.0) -> Bar:
    """Return the ledger as a bar, busy parts first; narrow parts are drawn as one."""
    segments = []
    for busy in (True, False):
        shares = [(part, ledger.total_frac(part.key)) for part in ledger.parts if part.busy is busy]
        segments += [Segment(part.key, part.label, frac) for part, frac in shares if frac >= MIN_SEGMENT_FRAC]
        rest = sum(frac for _, frac in shares if frac < MIN_SEGMENT_FRAC)
        if rest > 0:
            segments.append(Segment("rest", "all else", rest))
    busy_label, idle_label = DEVICE_LABELS[ledger.device]
    return Bar(
        title=f"{title}: " + ", ".join(f"{each.label} {percent(each.frac, 1)}" for each in segments),
        segments=tuple(segments),
        groups=(Segment("", busy_label, ledger.busy_frac), Segment("", idle_label, ledger.idle_frac)),
        length=length,
        name=name,
    )


def _caption(steps: int, looped: bool, method: str) -> str:
    if not looped:
        return (
            f"No steps were found, so this covers the whole recording; the parts sum to it{_ROUNDED}. "
            + HOW_TO_MARK_STEPS
        )
    if steps == 1:
        return f"One complete step, {method}; the parts sum to it{_ROUNDED}."
    return (
        f"Means over {count(steps, 'complete step')}, {method}; the sentences above give medians. The parts sum to the "
        f"step{_ROUNDED}."
    )


def _row(ledger: Ledger, unit: Scale, label: str, kind: str, *keys: str, colour: str | None = None) -> Row:
    values = ledger.sum_ns(*keys)
    spread = (unit.range(*ledger.range_ns(*keys)),) if len(values) > 1 else ()
    cells = (label, unit.number(float(values.mean())), percent(ledger.total_frac(*keys), 1), *spread)
    return Row(cells, key=colour, kind=kind)
