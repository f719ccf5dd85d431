"""The ledger of a run as a bar and a table: where each step went, to the last part."""

from __future__ import annotations

from gpulab.analysis.steps.ledger import Ledger
from gpulab.views.sheet.sheet import Bar, Block, Line, Row, Segment, Table
from gpulab.wording import Scale, count, percent, scale

SLIVER_FRAC = 0.005  # a part narrower than this is drawn with its like; the table keeps them apart
DEVICE = {"gpu": ("GPU busy", "GPU idle"), "cpu": ("computing", "not computing")}


RECORDED, ESTIMATED = "recorded with the profiler on", "estimated"


def accounts(ledger: Ledger, *, looped: bool = True, how: str = RECORDED) -> tuple[Block, ...]:
    """The bar, the table, and the parts that took no time; of all that was recorded where no loop was seen in it."""
    unit = scale(float(ledger.step_ns.mean()), figures=4)
    present = [part for part in ledger.parts if ledger.part_ns[part.key].any()]
    absent = [part.label for part in ledger.parts if part not in present]
    rows = []
    for busy, label in zip((True, False), DEVICE[ledger.device], strict=True):
        mine = [part for part in present if part.busy is busy]
        if ledger.device == "cpu" and busy:
            rows.append(_row(ledger, unit, label, "group", "compute", colour="compute"))
            continue
        rows.append(_row(ledger, unit, label, "group", *(part.key for part in mine)))
        rows += [_row(ledger, unit, part.label, "plain", part.key, colour=part.key) for part in mine]
    rows.append(_row(ledger, unit, "step" if looped else "all recorded", "total", *(part.key for part in present)))
    count = len(ledger.step_ns)
    header = ("", f"{unit.unit} per step" if looped else unit.unit, "share", *(("range",) if count > 1 else ()))
    table = Table(header=header, rows=tuple(rows), caption=_caption(count, looped, how))
    nothing = (Line(f"No time went to: {', '.join(absent)}.", soft=True),) if absent else ()
    return bar(ledger, "Where a step goes"), table, *nothing


def bar(ledger: Ledger, title: str, *, name: str = "", length: float = 1.0) -> Bar:
    """The ledger as a bar, busy parts first; slivers are drawn together."""
    segments = []
    for busy in (True, False):
        mine = [(part, ledger.frac(part.key)) for part in ledger.parts if part.busy is busy]
        segments += [Segment(part.key, part.label, frac) for part, frac in mine if frac >= SLIVER_FRAC]
        rest = sum(frac for _, frac in mine if frac < SLIVER_FRAC)
        if rest > 0:
            segments.append(Segment("rest", "all else", rest))
    busy_label, idle_label = DEVICE[ledger.device]
    return Bar(
        title=f"{title}: " + ", ".join(f"{each.label} {percent(each.frac, 1)}" for each in segments),
        segments=tuple(segments),
        groups=(Segment("", busy_label, ledger.busy_frac), Segment("", idle_label, ledger.idle_frac)),
        length=length,
        name=name,
    )


def _caption(steps: int, looped: bool, how: str) -> str:
    if not looped:
        return "No steps were found: this is all that was recorded; the parts sum to it exactly."
    if steps == 1:
        return f"One interior step, {how}; the parts sum to it exactly."
    return f"Mean of {count(steps, 'interior step')}, {how}; the parts sum to the step exactly."


def _row(ledger: Ledger, unit: Scale, label: str, kind: str, *keys: str, colour: str | None = None) -> Row:
    values = ledger.of(*keys)
    spread = (unit.range(*ledger.range_ns(*keys)),) if len(values) > 1 else ()
    cells = (label, unit.number(float(values.mean())), percent(ledger.frac(*keys), 1), *spread)
    return Row(cells, key=colour, kind=kind)
