"""The ledger of a run as a bar and a table: where the time of a step goes."""

from __future__ import annotations

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.analysis.steps.typical_step import TypicalStep
from gpulab.run import Run
from gpulab.run_facts import NSIGHT_SYSTEMS, is_of_pytorch
from gpulab.views.sheet.sheet import Bar, Block, Line, Row, Segment, TableBlock
from gpulab.wording import Scale, count, percent, scale

MIN_SEGMENT_FRAC = 0.005  # narrower parts are drawn as one "all else" segment; the table lists each
MARK_STEPS = "If it is a loop, call gpulab.step(), or step() of torch.profiler, at the end of each iteration."
DEVICE_LABELS = {"gpu": ("GPU busy", "GPU idle"), "cpu": ("long operators (>= 10 us)", "other time")}
_ROUNDED = " (apart from rounding in this table)"
RECORDED, ESTIMATED = "recorded with the profiler on", "estimated"
WITHOUT_PROFILER = "without the time that the profiler adds"


def how_to_mark_steps(run: Run) -> str:
    """Say how to record the steps of a loop, by the profiler that recorded the run."""
    if run.facts.get("profiler", "").startswith(NSIGHT_SYSTEMS):
        return 'If it is a loop, run each iteration inside `with torch.cuda.nvtx.range(f"step {number}"):`.'
    if not is_of_pytorch(run):
        return (
            'If it is a loop, run each iteration inside `jax.profiler.StepTraceAnnotation("train", step_num=number)`.'
        )
    return MARK_STEPS


def ledger_blocks(
    ledger: Ledger, step: TypicalStep, *, has_steps: bool = True, method: str = RECORDED, marking: str = MARK_STEPS
) -> tuple[Block, ...]:
    """Return the bar, the table and a line with the parts that took no time.

    Without a training loop (`has_steps=False`) they cover the whole recording, and `marking` says how to mark steps.
    `method`: RECORDED, WITHOUT_PROFILER or ESTIMATED.
    """
    unit = scale(float(step.step_ns), figures=4)
    present = [part for part in ledger.parts if ledger.part_ns[part.key].any() or step.part_ns[part.key]]
    absent = [part.label for part in ledger.parts if part not in present]
    rows = []
    for busy, label in zip((True, False), DEVICE_LABELS[ledger.device], strict=True):
        parts = [part for part in present if part.busy is busy]
        if ledger.device == "cpu" and busy:
            rows.append(_row(ledger, step, unit, label, "group", "compute", colour="compute"))
            continue
        rows.append(_row(ledger, step, unit, label, "group", *(part.key for part in parts)))
        rows += [_row(ledger, step, unit, part.label, "plain", part.key, colour=part.key) for part in parts]
    rows.append(
        _row(ledger, step, unit, "step" if has_steps else "all recorded", "total", *(part.key for part in present))
    )
    step_count = len(ledger.step_ns)
    header = (
        "",
        f"{unit.unit} per step" if has_steps else unit.unit,
        "share",
        *(("range",) if step_count > 1 else ()),
    )
    meanwhile = _IDLE_ROWS if any(not part.busy for part in present) and ledger.device == "gpu" else ""
    caption = f"{_caption(step_count, has_steps, method, marking, is_mean=step.is_mean)}{meanwhile}"
    table = TableBlock(header=header, rows=tuple(rows), caption=caption)
    no_time = (Line(f"No time went to: {', '.join(absent)}.", soft=True),) if absent else ()
    title = "Where the step time goes" if has_steps else "Where the time goes"
    return ledger_bar(ledger, title, step=step), table, *no_time


def method_of(run: Run, steps: Steps) -> str:
    """Return how the times of the ledger were measured, for its caption."""
    if run.source.how == "virtual":
        return ESTIMATED
    return RECORDED if steps.unprofiled_ns is None else WITHOUT_PROFILER


def ledger_bar(
    ledger: Ledger, title: str, *, step: TypicalStep | None = None, name: str = "", length: float = 1.0
) -> Bar:
    """Return the ledger as a bar, busy parts first; narrow parts are drawn as one.

    `step`: the step to show; without it, the bar shows the means of the recorded steps.
    """
    frac_of = step.frac if step is not None else ledger.total_frac
    segments = []
    for busy in (True, False):
        shares = [(part, frac_of(part.key)) for part in ledger.parts if part.busy is busy]
        segments += [Segment(part.key, part.label, frac) for part, frac in shares if frac >= MIN_SEGMENT_FRAC]
        rest = sum(frac for _, frac in shares if frac < MIN_SEGMENT_FRAC)
        if rest > 0:
            segments.append(Segment("rest", "all else", rest))
    busy_label, idle_label = DEVICE_LABELS[ledger.device]
    return Bar(
        title=f"{title}: " + ", ".join(f"{each.label} {percent(each.frac, 1)}" for each in segments),
        segments=tuple(segments),
        groups=(
            Segment("", busy_label, frac_of(*(part.key for part in ledger.parts if part.busy))),
            Segment("", idle_label, frac_of(*(part.key for part in ledger.parts if not part.busy))),
        ),
        length=length,
        name=name,
    )


_IDLE_ROWS = " The rows under GPU idle name what the CPU did meanwhile."


def _caption(steps: int, looped: bool, method: str, marking: str, *, is_mean: bool) -> str:
    if not looped:
        return f"No steps were found, so this covers the whole recording; the parts sum to it{_ROUNDED}. " + marking
    if steps == 1:
        return f"One complete step, {method}; the parts sum to it{_ROUNDED}."
    if is_mean:
        return (
            "The mean step of the run, with the cause named above; its other parts are those of "
            f"{count(steps, 'complete step')}. The parts sum to the step{_ROUNDED}."
        )
    return f"A typical step, {method}. The parts sum to it{_ROUNDED}."


def _row(
    ledger: Ledger, step: TypicalStep, unit: Scale, label: str, kind: str, *keys: str, colour: str | None = None
) -> Row:
    spread = (unit.range(*step.range_ns(ledger, *keys)),) if len(ledger.step_ns) > 1 else ()
    cells = (label, unit.number(float(step.sum_ns(*keys))), percent(step.frac(*keys), 1), *spread)
    return Row(cells, key=colour, kind=kind)
