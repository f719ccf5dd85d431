"""A run as one flat dict of numbers and words, for trackers, dashboards and spreadsheets.

Fields are only added, never renamed. A field that was not measured is absent, never zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np

from gpulab.analysis.machine.energy import loop_energy
from gpulab.analysis.steps.phases import PhaseKind, loop_phases
from gpulab.questions import diagnose
from gpulab.questions.run_names import RunLike, find_run
from gpulab.rules import Diagnosis
from gpulab.run import Run

Value: TypeAlias = float | int | str

FIELDS: Mapping[str, str] = {
    "name": "name of the run",
    "outcome": "ok, or the exception that ended it",
    "device": "the GPU or CPU it ran on",
    "recorded_how": "measured, recorded or virtual",
    "date": "when it was recorded",
    "rank": "rank in its job",
    "duration_s": "length of the recording, s",
    "steps": "number of steps found",
    "step_s": "typical step, s, without the profiler if that was measured",
    "step_p99_ratio": "99th percentile of the step times over their median",
    "profiler_ratio": "a recorded step over an unrecorded one",
    "training_frac": "share of the run in training, 0-1; absent if no optimizer stepped",
    "evaluation_frac": "share of the run in evaluations, 0-1; absent if there were none",
    "verdict": "the first sentence of the report",
    "rule": "rule of the first finding; absent if there is none",
    "confidence": "certain, likely or suspect",
    "speedup_low": "lower end of the predicted speed-up of its fix",
    "speedup_high": "upper end",
    "speedup_bound": "speed-up that no such change can exceed",
    "share_KEY": "share of a step, 0-1, of each part of the ledger: share_matmul, share_loader, ...",
    "idle_frac": "share of a step in which the GPU did nothing, 0-1",
    "gpu_util_frac": "mean utilisation by the driver, 0-1, of the busiest GPU",
    "gpu_memory_bytes": "most memory in use on a GPU, all processes, bytes",
    "rss_bytes": "most memory of the main process, bytes",
    "energy_j": "GPU energy of the loop, J",
    "power_w": "mean power of all GPUs, W",
    "step_j": "GPU energy per step, J",
    "sample_j": "GPU energy per sample, J",
    "idle_j": "GPU energy of idle time, at least, J",
    "cpu_energy_j": "energy of the CPU packages, all programs, J",
}


def summary(run: RunLike | Diagnosis) -> dict[str, Value]:
    """Return the fields of FIELDS that were measured."""
    diagnosis = run if isinstance(run, Diagnosis) else diagnose(find_run(run))
    run_pairs = (*_identity(diagnosis.run), *_steps(diagnosis), *_phases(diagnosis.run))
    pairs = (*run_pairs, *_verdict(diagnosis), *_sensors(diagnosis))
    return {name: value for name, value in pairs if value is not None and value == value}  # NaN: not measured


def idle_step_frac(diagnosis: Diagnosis) -> float | None:
    """Return the share of a step in which the GPU did nothing; None without a GPU or a ledger."""
    ledger, step = diagnosis.ledger, diagnosis.step
    if ledger is None or step is None or ledger.device != "gpu" or not step.step_ns:
        return None
    idle_ns = sum(step.part_ns.get(part.key, 0) for part in ledger.parts if not part.busy)
    return min(1.0, idle_ns / step.step_ns)


def _identity(run: Run) -> Iterator[tuple[str, Value | None]]:
    yield "name", run.name
    yield "outcome", run.outcome
    yield "device", run.source.device
    yield "recorded_how", run.source.how
    yield "date", run.source.date or None
    yield "rank", run.rank
    yield "duration_s", run.span_ns / 1e9


def _steps(diagnosis: Diagnosis) -> Iterator[tuple[str, Value | None]]:
    steps, step, ledger = diagnosis.steps, diagnosis.step, diagnosis.ledger
    if steps.detected_by == "whole run":
        return
    yield "steps", len(steps)
    step_ns = step.step_ns if step is not None else steps.step_ns
    yield "step_s", None if step_ns is None else step_ns / 1e9
    yield "profiler_ratio", steps.profiler_overhead
    times_ns = steps.dur_ns[steps.unprofiled] if steps.unprofiled.any() else steps.dur_ns[steps.interior]
    if len(times_ns) >= _MIN_FOR_P99:
        yield "step_p99_ratio", float(np.percentile(times_ns, 99) / max(1.0, float(np.median(times_ns))))
    if step is not None and ledger is not None and step.step_ns:
        for part in ledger.parts:
            yield f"share_{part.key}", step.part_ns.get(part.key, 0) / step.step_ns
    yield "idle_frac", idle_step_frac(diagnosis)


_MIN_FOR_P99 = 20


def _phases(run: Run) -> Iterator[tuple[str, Value | None]]:
    for name, kind in (("training_frac", PhaseKind.TRAINING), ("evaluation_frac", PhaseKind.EVALUATION)):
        total_ns = sum(phase.total_ns for phase in loop_phases(run) if phase.kind is kind)
        yield name, total_ns / run.span_ns if total_ns else None


def _verdict(diagnosis: Diagnosis) -> Iterator[tuple[str, Value | None]]:
    yield "verdict", diagnosis.verdict
    first = diagnosis.first
    if first is None:
        return
    yield "rule", first.rule
    yield "confidence", first.confidence
    if first.gain is not None:
        yield "speedup_low", first.gain.worst_speedup
        yield "speedup_high", first.gain.best_speedup
        yield "speedup_bound", first.gain.bound


def _sensors(diagnosis: Diagnosis) -> Iterator[tuple[str, Value | None]]:
    run = diagnosis.run
    utils = [
        float(np.nanmean(values))
        for device in np.unique(run.gpu_rows["device"]).tolist()
        if not np.isnan(values := run.gpu_rows["util_frac"][run.gpu_rows["device"] == device]).all()
    ]
    yield "gpu_util_frac", max(utils, default=None)
    for name, rows, column in (
        ("gpu_memory_bytes", run.gpu_rows, "memory_used_bytes"),
        ("rss_bytes", run.host_rows, "rss_bytes"),
    ):
        yield name, None if np.isnan(rows[column]).all() else float(np.nanmax(rows[column]))
    energy = loop_energy(run, diagnosis.steps, idle_step_frac(diagnosis))
    if energy is not None:
        yield "energy_j", energy.gpu_j
        yield "power_w", energy.mean_w
        yield "step_j", energy.step_j
        yield "sample_j", energy.sample_j
        yield "idle_j", energy.idle_j
        yield "cpu_energy_j", energy.cpu_j
