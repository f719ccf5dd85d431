"""The figures of a diagnosis as JSON, for scripts and continuous integration. Fields are only added, never renamed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gpulab.analysis.steps.phase_ledger import phase_ledger
from gpulab.analysis.steps.phases import RunPhase, evaluated_by, find_phases
from gpulab.rules import Diagnosis
from gpulab.rules.engine.finding import Finding, Gain
from gpulab.run import Run

FORMAT = 1


def summary_json(diagnosis: Diagnosis, ranks: Sequence[int] = ()) -> str:
    """Return the summary of a diagnosis; `ranks`: of a job, the ranks that were read. Absent values are null."""
    return json.dumps(_summary(diagnosis, ranks), indent=2, allow_nan=False) + "\n"


def _summary(diagnosis: Diagnosis, ranks: Sequence[int]) -> dict[str, Any]:
    run, steps, step, ledger = diagnosis.run, diagnosis.steps, diagnosis.step, diagnosis.ledger
    return {
        "format": FORMAT,
        "name": run.name,
        "device": run.source.device,
        "recorded_how": run.source.how,
        "date": run.source.date,
        "outcome": run.outcome,
        "rank": run.rank,
        "world_size": int(run.facts["world_size"]) if run.facts.get("world_size", "").isdigit() else None,
        "ranks": list(ranks),
        "duration_s": run.span_ns / 1e9,
        "steps": len(steps) if steps.detected_by != "whole run" else None,
        "step_ms": _ms(step.step_ns if step is not None else steps.step_ns),
        "profiler_overhead_ratio": steps.profiler_overhead,
        "ledger_ms": None
        if step is None or ledger is None
        else {part.key: _ms(step.part_ns.get(part.key, 0)) for part in ledger.parts},
        "phases": [_phase(run, phase) for phase in find_phases(run)],
        "verdict": diagnosis.verdict,
        "findings": [_finding(finding) for finding in diagnosis.findings],
    }


def _phase(run: Run, phase: RunPhase) -> dict[str, Any]:
    """Return a phase of the run; its ledger covers `recorded_s` and is null if no events of it were recorded."""
    of_phase = phase_ledger(run, phase)
    parts = None if of_phase is None else of_phase.ledger.part_ns
    return {
        "kind": phase.kind.value,
        "name": phase.name or None,
        "evaluated_by": evaluated_by(run, phase) or None,
        "time_s": phase.total_ns / 1e9,
        "share": phase.total_ns / max(1, run.span_ns),
        "times": phase.occurrences or None,
        "batches": phase.batches or None,
        "optimizer_steps": phase.updates or None,
        "recorded_s": 0.0 if of_phase is None else of_phase.recorded_ns / 1e9,
        "ledger_ms": None if parts is None else {key: _ms(int(part_ns.sum())) for key, part_ns in parts.items()},
        "largest_part": None if of_phase is None else of_phase.largest[0],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "claim": finding.claim,
        "confidence": finding.confidence,
        "is_advice_only": finding.informs_only,
        "gain": None if finding.gain is None else _gain(finding.gain),
    }


def _gain(gain: Gain) -> dict[str, Any]:
    return {
        "step_ms": _ms(gain.step_ns),
        "predicted_ms": [_ms(gain.best_ns), _ms(gain.worst_ns)],
        "bound_ms": _ms(gain.floor_ns),
        "speedup": [gain.worst_speedup, gain.best_speedup],
        "speedup_bound": gain.bound,
    }


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6
