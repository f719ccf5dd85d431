"""Training loops recorded on a real H100 with and without one cause: the predicted step time, and the measured one.

The recordings are datasets (recorded_runs/README.md). Each has a twin, which is the same loop with one change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from gpulab.files.datasets import dataset
from gpulab.lessons.labs.drills.run_counters import read_counters
from gpulab.lessons.labs.machine.monitoring import recorded_gpus
from gpulab.lessons.labs.steps import throughput
from gpulab.lessons.labs.steps.tuning_guide import open_items
from gpulab.questions import diagnose, predict
from gpulab.run import Run
from gpulab.views.sheet.sheet import Row, Sheet, TableBlock
from gpulab.views.sheet.view import View
from gpulab.wording import duration, percent, ratio

NEVER = "not on the list"


@dataclass(frozen=True, kw_only=True)
class RecordedFix:
    """A recording with one cause, and the change in its twin."""

    name: str  # of the dataset
    loop: str
    change: str  # what the twin does
    whatif: str | None  # the same change in gpulab.whatif; None: there is none
    item: str | None  # the same change in the tuning guide; None: the guide does not have it
    rule: str  # the finding that names it


RECORDED_FIXES: tuple[RecordedFix, ...] = (
    RecordedFix(name="h100_01", loop="large batches from the host", change="pinned, copied during the previous step",
                whatif="prefetch", item="pinned memory", rule="pageable_copies"),
    RecordedFix(name="h100_02", loop="predictions read every step", change="read after the loop",
                whatif="no_syncs", item="no synchronisation", rule="host_syncs"),
    RecordedFix(name="h100_03", loop="float32 matrix products", change="TF32",
                whatif="tf32", item="tensor cores", rule="no_tf32"),
    RecordedFix(name="h100_04", loop="bfloat16 convolutions", change="channels_last",
                whatif="channels_last", item="channels_last", rule="layout_conversions"),
    RecordedFix(name="h100_05", loop="noise drawn by the CPU", change="drawn on the GPU",
                whatif=None, item="tensors created on the GPU", rule="cpu_tensor_creation"),
    RecordedFix(name="h100_06", loop="empty_cache() every step", change="without empty_cache()",
                whatif="no_alloc", item=None, rule="allocator_thrash"),
    RecordedFix(name="h100_09", loop="AdamW over 160 tensors", change="fused=True",
                whatif="optimizer=fused", item=None, rule="unfused_optimizer"),
    RecordedFix(name="h100_11", loop="items computed in the loop", change="num_workers=8",
                whatif="workers=8", item="DataLoader workers", rule="no_workers"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FixResult:
    """Step times in ms: recorded before, predicted for the change, recorded with it."""

    fix: RecordedFix
    before_ms: float
    best_ms: float
    likely_ms: float
    worst_ms: float
    measured_ms: float

    @property
    def in_range(self) -> bool:
        """Whether the measured step time lies within the predicted range."""
        return self.best_ms <= self.measured_ms <= self.worst_ms


@cache
def fixed_recording(name: str) -> Run:
    """Return the twin with the change."""
    run = dataset(name).load_fixed()
    assert run is not None, f"{name} has no twin"
    return run


@cache
def fix_result(fix: RecordedFix) -> FixResult:
    """Predict a fix from the recording without it, and look up the result. It must have a `whatif`."""
    assert fix.whatif is not None
    run = recorded_gpus.recording(fix.name)
    prediction = predict(run, fix.whatif)
    return FixResult(
        fix=fix,
        before_ms=prediction.step_ns / 1e6,
        best_ms=prediction.best_ns / 1e6,
        likely_ms=prediction.likely_ns / 1e6,
        worst_ms=prediction.worst_ns / 1e6,
        measured_ms=throughput.step_ms(fixed_recording(fix.name)),
    )


def fix_results() -> tuple[FixResult, ...]:
    """Return the results of all fixes that a what-if can predict."""
    return tuple(fix_result(fix) for fix in RECORDED_FIXES if fix.whatif is not None)


def predicted_and_measured(results: Iterable[FixResult]) -> View:
    """Tabulate predicted beside measured step times."""
    rows = tuple(
        Row((each.fix.loop, each.fix.change, _ms(each.before_ms), f"{_ms(each.best_ms)} to {_ms(each.worst_ms)}",
             _ms(each.measured_ms), ratio(each.before_ms / each.likely_ms), ratio(each.before_ms / each.measured_ms)))
        for each in results
    )  # fmt: skip
    header = ("recorded loop", "change", "before", "predicted", "measured", "predicted gain", "measured gain")
    caption = f"Step times; both recordings of each pair: {recorded_gpus.recording(RECORDED_FIXES[0].name).source}."
    table = TableBlock(header=header, rows=rows, text_columns=2, caption=caption)
    return View(Sheet("gpulab: predicted and measured on an H100", (table,)))


@cache
def items_left_open(fix: RecordedFix) -> tuple[str, ...]:
    """Return the items of the tuning guide that a recording leaves open, in the order of the guide."""
    return open_items(recorded_gpus.recording(fix.name))


def measured_gain(fix: RecordedFix) -> float:
    """Return the measured speedup of a fix."""
    return throughput.step_ms(recorded_gpus.recording(fix.name)) / throughput.step_ms(fixed_recording(fix.name))


def guide_attempts(fix: RecordedFix) -> int | None:
    """Return how many open items of the guide, in its order, one tries until the right one; None: never."""
    items = items_left_open(fix)
    return items.index(fix.item) + 1 if fix.item in items else None


@cache
def first_finding(fix: RecordedFix) -> str | None:
    """Return the rule of the first finding of gpulab's report."""
    first = diagnose(recorded_gpus.recording(fix.name)).first
    return first.rule if first else None


def utilisation(fix: RecordedFix) -> float:
    """Return the share of a step in which a kernel runs: GPU utilisation as `nvidia-smi` defines it, without copies."""
    return read_counters(recorded_gpus.recording(fix.name))["busy"] or 0.0


def advice_table(fixes: Iterable[RecordedFix] = RECORDED_FIXES) -> View:
    """Tabulate what the guide and the report recommend for each recording, and the gain of the right change."""
    rows = []
    for fix in fixes:
        attempts = guide_attempts(fix)
        items = items_left_open(fix)
        rows.append(Row((fix.loop, percent(utilisation(fix)), items[0] if items else "nothing",
                         NEVER if attempts is None else f"{attempts} of {len(items)}", first_finding(fix) or "nothing",
                         fix.change, ratio(measured_gain(fix)))))  # fmt: skip
    header = (
        "recorded loop",
        "utilisation",
        "guide, first open item",
        "right item, in order",
        "report",
        "change",
        "gain",
    )
    caption = (
        "Right item: its place among the open items of the guide. Gain: measured, with the change; "
        f"{recorded_gpus.recording(RECORDED_FIXES[0].name).source}."
    )
    table = TableBlock(header=header, rows=tuple(rows), text_columns=6, caption=caption)
    return View(Sheet("gpulab: eight recordings and a tuning guide", (table,)))


def _ms(value: float) -> str:
    return duration(1e6 * value)
