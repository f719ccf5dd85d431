"""Judge recorded runs with known causes: gpulab's diagnosis and the advice of simple baselines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import gpulab
from benchmarks.diagnosis.baselines import ADVISERS
from benchmarks.diagnosis.trace_labels import TRACES
from gpulab import Run
from gpulab.comparison import compare  # these know nothing of what this machine learned
from gpulab.rules import diagnose
from gpulab.workloads import workload

LOUD_FRAC = 0.10  # a claim on a healthy run that promises more of the step than this is a false alarm
# On a CPU with bfloat16 instructions, this is no false alarm: autocast made seven of eight twins 1.10 to 1.84 times as
# fast (the eighth, on a busy machine, 0.81 times).
TRUE_OF_TWINS = ("no_bfloat16_on_cpu",)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Diagnosis of one run."""

    name: str
    labels: tuple[str, ...]  # the rules that would be right to come first; () for a healthy run
    first: str | None
    ranked: tuple[str, ...]  # every rule that spoke, in order, asides left out
    loudest_frac: float  # the largest predicted saving, as a share of the step
    loudest: str | None
    abstained: bool  # nothing was claimed, and something could not be judged though its inputs were there
    advised: Mapping[str, list[str]]  # adviser -> its advice, first things first, as names of our rules


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Verdicts on a planted run and its twin."""

    cause: str
    planted: Verdict
    twin: Verdict
    ratio: float | None  # measured: the planted run's typical step over the twin's, for the same samples
    inside: bool | None  # whether the planted finding's range held it; None where nothing was predicted
    error_frac: float | None  # of the predicted saving, as a share of the measured one


def verdict(name: str, run: Run, labels: Sequence[str]) -> Verdict:
    """Return the verdict on a run."""
    diagnosis = diagnose(run)
    acting = [finding for finding in diagnosis.findings if not finding.informs_only]
    shares = [
        (finding.saved_ns / finding.gain.step_ns, finding.rule)
        for finding in acting
        if finding.gain and (labels or finding.rule not in TRUE_OF_TWINS)
    ]
    loudest = max(shares, default=(0.0, None))
    return Verdict(
        name=name,
        labels=tuple(labels),
        first=diagnosis.first.rule if diagnosis.first else None,
        ranked=tuple(finding.rule for finding in acting),
        loudest_frac=loudest[0],
        loudest=loudest[1],
        abstained=diagnosis.first is None and diagnosis.verdict.startswith(("No cause", "Not judged")),
        advised={name: list(adviser(run)) for name, adviser in ADVISERS.items()},
    )


def judged(folder: Path) -> Iterator[Judgement]:
    """Judge every pair of recorded runs in a folder."""
    for file in sorted(folder.glob("*.planted.gpulab")):
        other = file.with_name(file.name.replace(".planted.", ".twin."))
        if other.exists():
            yield _judgement(file.name.split(".")[0], gpulab.load(file), gpulab.load(other))


def _judgement(name: str, planted: Run, twin: Run) -> Judgement:
    cause = workload(name).rule
    assert cause is not None, f"nothing is planted in {name}"
    planted_verdict = verdict(name, planted, [cause])
    ratio = inside = error = None
    finding = next((each for each in diagnose(planted).findings if each.rule == cause), None)
    if finding is not None and finding.gain is not None:
        compared = compare(planted, twin, finding.rule)
        work = workload(workload(name).twin or name).batch / workload(name).batch
        ratio = compared.ratio * work
        before_ns, after_ns = compared.before_ns, compared.after_ns
        # A twin with more samples per step applies another fix than the predicted one.
        fix_applied = workload(name).twin_applies_fix and work == 1
        inside = compared.in_predicted_range if fix_applied else None
        if before_ns > after_ns and fix_applied:
            predicted = finding.gain.saved_ns / finding.gain.step_ns
            error = abs(predicted / (1 - after_ns / before_ns) - 1)
    return Judgement(
        cause=cause,
        planted=planted_verdict,
        twin=verdict(workload(name).twin or "", twin, ()),
        ratio=ratio,
        inside=inside,
        error_frac=error,
    )


def judged_traces(folder: Path) -> Iterator[Verdict]:
    """Judge every real trace with a known cause; empty if the folder is missing."""
    for name, labels in TRACES.items():
        file = folder / f"{name}.json.gz"
        if file.exists():
            yield verdict(name, gpulab.load(file), labels)


def middle(values: Sequence[float]) -> float:
    """Return the median."""
    return float(median(values))
