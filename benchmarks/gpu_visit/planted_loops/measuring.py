"""One half of a planted loop: measured on the device, or played by the virtual GPU."""

from __future__ import annotations

import gc
import importlib.util
import shutil
import time
from dataclasses import replace
from statistics import median
from typing import Any

import torch

import gpulab
from benchmarks.gpu_visit.planted_loops import LoopSettings, PlantedLoop
from benchmarks.gpu_visit.stages.ceilings import synchronize
from gpulab.analysis.steps.detection import find_steps
from gpulab.errors import GpulabError
from gpulab.rules.engine.finding import Diagnosis, Finding

REPEATS, WARM_STEPS = 3, 8
DRY_STEPS, VIRTUAL_STEPS = 2, 10


class StepClock:
    """Times the steps of a loop after the first `warm` ones, until the device has done them."""

    def __init__(self, device: str, warm: int) -> None:
        self.device, self.warm, self.steps, self.began_s = device, warm, 0, 0.0
        self.began_s = time.perf_counter()

    def step_done(self) -> None:
        """Count a step; start the clock after the last warm one."""
        self.steps += 1
        if self.steps == self.warm:
            synchronize(self.device)
            self.began_s = time.perf_counter()

    def step_s(self) -> float:
        """Seconds per step."""
        synchronize(self.device)
        return (time.perf_counter() - self.began_s) / (self.steps - self.warm)


def measured(loop: PlantedLoop, *, dry_run: bool) -> dict[str, Any]:
    """Record and diagnose the loop, then time it before and after its fix, in turns."""
    settings = settings_of(loop, dry_run=dry_run)
    diagnosis = recorded(loop, settings)
    repeats, warm = (1, 1) if dry_run else (REPEATS, WARM_STEPS)
    before_s: list[float] = []
    after_s: list[float] = []
    peaks: list[tuple[bool, int]] = []
    for _ in range(repeats):
        for fixed, seconds in ((False, before_s), (True, after_s)):
            gc.collect()
            if settings.device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            seconds.append(plain_step_s(loop, replace(settings, fixed=fixed), warm))
            peaks.append((fixed, torch.cuda.max_memory_allocated() if settings.device == "cuda" else 0))
    return {
        "before_ms": [1e3 * value for value in before_s],
        "after_ms": [1e3 * value for value in after_s],
        "speedup": loop.work * median(before_s) / median(after_s),
        "peak_bytes": max(peak for fixed, peak in peaks if not fixed),
        "peak_fixed_bytes": max(peak for fixed, peak in peaks if fixed),
        "compiled": settings.can_compile,
        **facts_of(diagnosis, loop),
    }


def recorded(loop: PlantedLoop, settings: LoopSettings) -> Diagnosis:
    """Run the loop a little, so that libraries are loaded; then record and diagnose it."""
    if not settings.tiny:
        loop.run(replace(settings, steps=3))
    with gpulab.profile(loop.name) as session:
        loop.run(settings)
        synchronize(settings.device)
    assert session.run is not None
    return gpulab.diagnose(session.run)


def plain_step_s(loop: PlantedLoop, settings: LoopSettings, warm: int) -> float:
    """Seconds per step of the loop alone."""
    clock = StepClock(settings.device, warm)
    loop.run(replace(settings, step_done=clock.step_done))
    return clock.step_s()


def settings_of(loop: PlantedLoop, *, dry_run: bool) -> LoopSettings:
    """Full size on the GPU, or two tiny steps on the CPU."""
    if dry_run:
        return LoopSettings(device="cpu", steps=DRY_STEPS, tiny=True)
    return LoopSettings(device="cuda", steps=loop.steps, can_compile=can_compile())


def can_compile() -> bool:
    """Whether torch.compile has what it needs here: Triton, and a C compiler for its launchers."""
    return importlib.util.find_spec("triton") is not None and bool(shutil.which("cc") or shutil.which("gcc"))


def facts_of(diagnosis: Diagnosis, loop: PlantedLoop) -> dict[str, Any]:
    """What the diagnosis says: its first finding, and the rank of the planted cause."""
    findings = [finding for finding in diagnosis.findings if not finding.informs_only]
    rules = [finding.rule for finding in findings]
    planted_finding = next((finding for finding in findings if finding.rule in loop.rules), None)
    return {
        "recorded_step_ms": (diagnosis.steps.step_ns or 0) / 1e6,
        "profiler_overhead": find_steps(diagnosis.run).profiler_overhead,
        "rules": rules,
        "rank": rules.index(planted_finding.rule) + 1 if planted_finding else None,
        "verdict": diagnosis.verdict,
        "first": finding_facts(diagnosis.first),
        "planted": finding_facts(planted_finding),
        "unjudged": {each.rule: each.reason for each in diagnosis.unjudged},
    }


def finding_facts(finding: Finding | None) -> dict[str, Any] | None:
    """A finding and its predicted speed-up: the ends of the range, and the bound."""
    if finding is None:
        return None
    gain = finding.gain
    return {
        "rule": finding.rule,
        "claim": finding.claim,
        "confidence": finding.confidence,
        "evidence": finding.evidence,
        "fix": finding.fix,
        "predicted": None if gain is None else [gain.worst_speedup, gain.best_speedup],
        "bound": None if gain is None else gain.bound,
    }


def played(loop: PlantedLoop, gpu: str, *, dry_run: bool) -> dict[str, Any]:
    """Both sides of the loop on the virtual GPU; what it cannot play is said with the reason."""
    sides = {"before": False, "after": True}
    return {name: played_side(loop, gpu, fixed=fixed, dry_run=dry_run) for name, fixed in sides.items()}


def played_side(loop: PlantedLoop, gpu: str, *, fixed: bool, dry_run: bool) -> dict[str, Any]:
    """Step time with its range, peak memory and first finding, by the model."""
    steps = DRY_STEPS if dry_run else VIRTUAL_STEPS
    settings = LoopSettings(device="cuda", steps=steps, fixed=fixed, tiny=dry_run)
    try:
        with gpulab.virtual_gpu(gpu, loop.name) as virtual:
            loop.run(settings)
        low_ns, high_ns = virtual.step_range_ns
        step_ns = virtual.step_ns
    except (GpulabError, RuntimeError) as error:  # RuntimeError: an operator that the virtual GPU lacks
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    assert virtual.run is not None
    first = gpulab.diagnose(virtual.run).first
    return {
        "step_ms": step_ns / 1e6,
        "range_ms": [low_ns / 1e6, high_ns / 1e6],
        "peak_bytes": virtual.memory.max_allocated_bytes,
        "first": first.rule if first else None,
    }
