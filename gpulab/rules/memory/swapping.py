"""Memory that the system reads back from swap while the loop runs."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.host.cpu_contention import host_samples_in_loop
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, known_numbers
from gpulab.wording import percent, size

_MIN_BYTES = 32 * 2**20
_MIN_BYTES_PER_S = 2**20
_SCARCE_FRAC = 0.2  # of the memory of the machine: with more available, what is swapped in is not the loop's need


def swap_in(evidence: Evidence) -> Finding | None:
    """The memory of the machine is full, and the system reads parts of programs back from swap while the loop runs.

    Proof: the system's counter of pages swapped in grows during the loop, and little memory is available.

    Confused with: a program that was swapped out long before and wakes up once, while memory is free; reads of files,
    which are not swap.

    What to do: free memory. Fewer workers or a smaller prefetch_factor, datasets that share memory instead of a copy
    per worker, other programs ended, or a machine with more memory.
    """
    rows = host_samples_in_loop(evidence.run, evidence.steps)
    rows = rows.select(~np.isnan(rows["swapped_in_bytes"]))
    if len(rows) < 2:
        return None
    swapped_bytes = float(rows["swapped_in_bytes"][-1] - rows["swapped_in_bytes"][0])
    seconds = max(1e-9, float(rows["at_ns"][-1] - rows["at_ns"][0]) / 1e9)
    available = rows["memory_available_bytes"][~np.isnan(rows["memory_available_bytes"])]
    memory_bytes = evidence.run.machine.memory_bytes
    if swapped_bytes < _MIN_BYTES or swapped_bytes / seconds < _MIN_BYTES_PER_S:
        return None
    if not len(available) or not memory_bytes or available.min() > _SCARCE_FRAC * memory_bytes:
        return None
    free_frac = float(available.min()) / memory_bytes
    return Finding(
        claim=f"The memory of the machine is full: {size(swapped_bytes)} were read back from swap while the loop ran.",
        evidence=(
            f"{size(swapped_bytes / seconds)} per second, all programs; at least {percent(free_frac)} of the "
            f"{size(memory_bytes)} of memory were available.",
        ),
        numbers=known_numbers(swapped_bytes=swapped_bytes, free_frac=free_frac),
        advice="Use fewer DataLoader workers or a smaller prefetch_factor, keep datasets in arrays that workers share "
        "(memory-mapped files, tensors) instead of Python lists, and end other programs. Other findings may be due to "
        "this: a step waits wherever its memory is swapped out.",
        confidence=LIKELY,
        from_steps=False,
        distorts_others=True,
    )
