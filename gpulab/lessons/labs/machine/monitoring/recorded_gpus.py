"""Readings of NVML and of PyTorch's allocator in the recordings of an NVIDIA H100, and the planted causes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from gpulab.extras import require_extra
from gpulab.files.datasets import dataset
from gpulab.lessons.labs.drills.run_counters import read_counters
from gpulab.lessons.labs.machine.monitoring.timelines import recorded_timeline
from gpulab.run import Run

if TYPE_CHECKING:
    import pandas as pd

MIB = 2**20
RECORDINGS = tuple(f"h100_{number:02}" for number in range(1, 15))
NVML_DELAY_NS = 300_000_000  # a reading describes the time before it; later ones describe the steps alone

SIGNATURES = ("data", "copies", "host", "device", "memory")  # the five classes of lesson 17
# What was planted in each recording, as one of the five.
PLANTED_SIGNATURES: Mapping[str, str] = dict(
    zip(
        RECORDINGS,
        ("copies", "copies", "device", "device", "host", "host", "device", "memory", "host", "memory", "data", "data",
         "host", "device"),
        strict=True,
    )
)  # fmt: skip


@cache
def recording(name: str) -> Run:
    """Return a recording of an H100 by its name: "h100_01" to "h100_14"."""
    return dataset(name).load()


def memory_views(name: str) -> dict[str, int]:
    """Return the highest memory of a recording in bytes, by three counters: allocated, reserved, used."""
    run = recording(name)
    return {
        "allocated": int(run.allocator["peak_allocated_bytes"].max()),
        "reserved": int(run.allocator["peak_reserved_bytes"].max()),
        "used": int(run.gpu_samples["memory_used_bytes"].max()),
    }


def utilisation_views(name: str) -> tuple[float, float] | None:
    """Return the utilisation of the steps of a recording by NVML (mean of its readings) and by the trace, 0-1.

    Both cover the complete steps; None if they were too short for five readings.
    """
    steps = recorded_timeline(recording(name))
    samples = recording(name).gpu_samples
    inside = (samples["at_ns"] >= steps.start_ns + NVML_DELAY_NS) & (samples["at_ns"] <= steps.end_ns)
    readings = samples.loc[inside, "util_frac"].astype(float)
    return (float(readings.mean()), steps.busy_frac) if len(readings) >= 5 else None


def recorded_counters(name: str) -> dict[str, float]:
    """Return the counters of lesson 20 for a recording, 0.0 where absent."""
    return {key: value or 0.0 for key, value in read_counters(recording(name)).items()}


def confusion_table(planted: Sequence[str], answers: Sequence[str]) -> pd.DataFrame:
    """Return how often each planted class got each answer: rows are planted, columns are answers."""
    require_extra("lab", "pandas", problem="This experiment needs pandas for its table.")
    import pandas as pd

    columns = [*SIGNATURES, *sorted(set(answers) - set(SIGNATURES))]
    counts = np.zeros((len(SIGNATURES), len(columns)), int)
    for cause, answer in zip(planted, answers, strict=True):
        counts[SIGNATURES.index(cause), columns.index(answer)] += 1
    return pd.DataFrame(counts, index=[f"planted: {name}" for name in SIGNATURES], columns=columns)


def classified(classifier: Callable[[Mapping[str, float]], str]) -> dict[str, str]:
    """Return what a classifier says about each recording; it gets the counters."""
    return {name: str(classifier(recorded_counters(name))) for name in RECORDINGS}
