"""How the numbers of a report were measured: which steps, the profiler's overhead, and missing data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpulab.analysis.data.loader import batches_per_step
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.interior import recorded_parts
from gpulab.analysis.steps.marked_steps import LOADER, OPTIMIZER, USER
from gpulab.rules.engine.finding import Diagnosis
from gpulab.run import Gap, Recording, Run
from gpulab.views.report.ledger_table import how_to_mark_steps
from gpulab.views.report.sensor_table import sampling_summary
from gpulab.views.sheet.sheet import Block, Facts, Line
from gpulab.wording import UNKNOWN, count, duration, plural, ratio, scale, sentence

_MIN_PART = 3  # adjacent traced steps, of which those between the first and the last are complete
_SHORTER = 0.8  # traced steps are longer than others, or about as long: far shorter ones have another cause


def provenance(diagnosis: Diagnosis) -> tuple[Block, ...]:
    """Return the facts, then a line for each thing that was not recorded or was lost."""
    run = diagnosis.run
    facts = Facts(tuple(_simulated(diagnosis) if run.source.how == "virtual" else _recorded(diagnosis)))
    return (facts, *(Line(sentence(text)) for text in _missing(run.recording)))


def _recorded(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    run, steps = diagnosis.run, diagnosis.steps
    yield "source", str(run.source)
    yield "steps", _steps(run, steps)
    yield "step time", _step_time(steps)
    yield "profiler", "; ".join(filter(None, (run.facts.get("profiler"), _inflation(steps))))
    yield "events", _events(run)
    yield "sensors", sampling_summary(run)
    yield "host", _host(run)
    yield "software", _software(run)


def _simulated(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """Yield the facts of a virtual run, which has no profiler and no sensors."""
    run, steps = diagnosis.run, diagnosis.steps
    yield "source", str(run.source)
    yield "steps", _steps(run, steps)
    if steps.step_ns is not None:
        yield "step time", f"{duration(steps.step_ns)} (median of {count(int(steps.interior.sum()), 'step')})"
    yield "host", run.facts.get("host", UNKNOWN)
    yield "events", f"{len(run.event_rows):,}, simulated: kernels by a model of the GPU, calls by a model of the host"
    yield "software", _software(run)


def origin(run: Run) -> str:
    """Return the name of a run and the source of its numbers."""
    return f'Run "{run.name}": {run.source}'


def gap_text(gap: Gap) -> str:
    """Say what was not recorded, why, and the fix."""
    return " ".join(filter(None, (sentence(f"Not recorded: {gap.what}: {gap.why}"), sentence(gap.fix))))


def how_detected(steps: Steps) -> str:
    """Return how the steps of a training loop were detected: "detected from the DataLoader"."""
    signs = {
        LOADER: "the DataLoader",
        OPTIMIZER: "the optimizer",
        USER: f"calls of {USER}",
        "ProfilerStep": "ProfilerStep events",
    }
    return f"detected from {signs.get(steps.detected_by, f'the {steps.detected_by}')}"


def _steps(run: Run, steps: Steps) -> str:
    if steps.detected_by == "whole run":
        return f"no steps were found; the whole run counts as one step. {how_to_mark_steps(run)}"
    burst = (
        f"; batches arrive in groups of {steps.burst}, so step times are averaged over groups of {steps.burst} steps"
        if steps.burst > 1
        else ""
    )
    run_ahead = "; the host ran ahead, so step times are GPU times" if steps.host is not None else ""
    batches = batches_per_step(run, steps)
    accumulated = f", with {batches} batches per step (gradient accumulation)" if batches > 1 else ""
    limits = (
        " (each from the end of an optimizer step to the end of the next)" if steps.detected_by == OPTIMIZER else ""
    )
    detection = f"{how_detected(steps)}{limits}{accumulated}"
    used = f"{int(steps.interior.sum())} of them complete{_exclusions(steps)}{burst}{run_ahead}"
    if steps.detected_by.startswith("repetition"):  # without marks, steps outside the traced parts are unknown
        return f"{count(len(steps), 'step')} in the traced part, others not counted, {detection}; {used}"
    if not steps.recorded.any():
        return f"{count(len(steps), 'step')}, {detection}; none traced from start to end"
    return f"{count(len(steps), 'step')}, {detection}; {int(steps.recorded.sum())} traced, {used}"


def _exclusions(steps: Steps) -> str:
    """Return why steps that were traced from start to end do not count as complete; "" if all do."""
    lengths = [len(part) for part in recorded_parts(steps.recorded)]
    if max(lengths, default=0) < _MIN_PART:
        return f" (fewer than {_MIN_PART} adjacent steps were traced)"
    filling = sum(max(0, length - 2) for length in lengths) - int(steps.interior.sum())
    return f" ({count(filling, 'other')} only filled the launch queue)" if filling else ""


def _step_time(steps: Steps) -> str:
    unprofiled_ns = steps.dur_ns[steps.unprofiled]
    if steps.unprofiled_ns is None:
        if steps.traced_ns is None:
            return UNKNOWN
        return f"{duration(steps.traced_ns)} with the profiler on; too few steps ran without it{_biased(steps)}"
    unit = scale(steps.unprofiled_ns)
    low, high = unit.number(float(unprofiled_ns.min())), unit.number(float(unprofiled_ns.max()))
    limits = f", {low}-{high} {unit.unit}" if low != high else ""
    measured = f"median of {count(len(unprofiled_ns), 'untraced step')}{limits}"
    return f"{unit(steps.unprofiled_ns)} without the profiler ({measured})"


def _biased(steps: Steps) -> str:
    """Return how many untraced steps do not count, because they say nothing about the time to load a batch."""
    biased = steps.prefetch_biased
    batches = plural(biased, "its batch was", "their batches were")
    return f" ({biased:,} do not count, because {batches} loaded while the profiler paused the loop)" if biased else ""


def _inflation(steps: Steps) -> str:
    if steps.profiler_overhead is None:
        return f"overhead {UNKNOWN}"
    if steps.profiler_overhead < _SHORTER:
        took, untraced = duration(steps.traced_ns), duration(steps.unprofiled_ns or 0)
        return (
            f"traced steps took {took}, untraced ones {untraced}: the step time changed for another reason than the "
            "profiler, such as other programs"
        )
    overhead = ratio(steps.profiler_overhead)
    return f"traced steps took {duration(steps.traced_ns)}, {overhead} the time without the profiler"


def _events(run: Run) -> str:
    recording = run.recording
    if not len(run.event_rows):
        return f"none recorded (level {recording.level})"
    on_ns = sum(end - start for start, end in recording.windows_ns)
    windows = f"; {duration(on_ns)} of {duration(run.span_ns)} traced" if on_ns else ""
    options = f"; {', '.join(recording.options)}" if recording.options else ""
    return f"{len(run.event_rows):,}{windows}; level: {recording.level}{options}"


def _software(run: Run) -> str:
    machine = run.machine
    versions = (
        ("PyTorch", machine.torch),
        ("Python", machine.python),
        ("driver", machine.driver),
    )
    return ", ".join(f"{name} {value}" for name, value in versions if value) or UNKNOWN


def _host(run: Run) -> str:
    cores = run.machine.cores_allowed
    return UNKNOWN if cores is None else count(cores, "usable core")


def _missing(recording: Recording) -> Iterator[str]:
    yield from map(gap_text, recording.left_out)
    for cause, events in sorted(recording.lost.items()):
        yield f"Lost from the trace: {count(events, 'event')} ({cause})"


def median_and_range(steps_ns: np.typing.NDArray[np.int64], group: int = 1) -> str:
    """Return median, count and range of step times: "median 12 ms (40 steps, 11-14 ms)".

    `group`: each time is the mean of this many steps: "median 12 ms (10 groups of 4 steps, 11-14 ms)".
    """
    unit = scale(float(np.median(steps_ns)))
    limits = unit.range(float(steps_ns.min()), float(steps_ns.max()))
    spread = f"{limits} {unit.unit}" if "-" in limits else "all equal"
    times = count(len(steps_ns), "step") if group == 1 else f"{count(len(steps_ns), 'group')} of {group} steps"
    return f"median {unit(float(np.median(steps_ns)))} ({times}, {spread})"
