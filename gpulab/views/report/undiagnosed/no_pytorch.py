"""The report of a cell in which PyTorch did nothing: two lines, and what to do if it asked for a GPU that is absent."""

from __future__ import annotations

from gpulab.rules import Diagnosis
from gpulab.run import KILLED, Run
from gpulab.run_facts import is_from_monitor
from gpulab.views.report.headline import headline, lacks_cuda, outcome_lines
from gpulab.views.report.provenance import origin
from gpulab.views.report.undiagnosed.unjudged import full_report_command
from gpulab.views.sheet.sheet import Block, Line
from gpulab.wording import sentence

_WITH_READINGS = ("OutOfMemoryError", "MemoryError", KILLED)  # the readings of memory may tell why the run ended
_USED_GPU_FRAC = 0.05
_SENSORS_FROM_NS = 1_000_000_000  # a shorter recording with sensors only has too few readings to show


def ran_no_pytorch(diagnosis: Diagnosis) -> bool:
    """Whether nothing was recorded that a report could explain: no operators, steps, failure or GPU work."""
    run = diagnosis.run
    if lacks_cuda(run):
        return not len(run.mark_rows)
    if (
        is_from_monitor(run)
        or run.outcome in _WITH_READINGS
        or (run.recording.level == "sensors" and run.span_ns >= _SENSORS_FROM_NS)
    ):
        return False
    tables = (run.event_rows, run.mark_rows, run.holder_rows)
    return run.failure is None and not any(map(len, tables)) and not _gpu_worked(run)


def _gpu_worked(run: Run) -> bool:
    """Whether a GPU was busy, as by a program of another framework: then its readings are worth showing."""
    return bool((run.gpu_rows["util_frac"] > _USED_GPU_FRAC).any())  # a missing reading, NaN, is not greater


def nothing_to_diagnose(diagnosis: Diagnosis) -> tuple[Block, ...]:
    """Return the verdict, and in one line the source and the command for the sensor readings and the reasons."""
    run = diagnosis.run
    return (
        *outcome_lines(diagnosis),
        *(() if lacks_cuda(run) else (headline(diagnosis),)),
        Line(f"{sentence(origin(run))} Sensor readings and all checks: {full_report_command(run)}", soft=True),
    )
