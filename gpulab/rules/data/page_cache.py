"""Rules about the page cache: a first epoch that fills it, and epochs that read everything again."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.data.epoch_reads import epoch_reads
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, known_numbers
from gpulab.run import Run
from gpulab.wording import count, percent, size

_MIN_BYTES = 64 * 2**20  # per epoch; less is not worth a sentence
_WARM_FRAC = 0.2  # of what the first epoch reads
_MIN_DIFFERENCE = 0.1  # of the time of an epoch
_SAME_FRAC = 0.6  # of the largest epoch
_FITS_FRAC = 0.8  # of the free memory: a dataset of this size does not stay in the page cache


def cold_cache(evidence: Evidence) -> Finding | None:
    """The first epoch reads the dataset from storage and waits for it; the later ones find it in the page cache.

    Proof: the bytes that the process and its workers read from storage in each epoch (reads from the page cache do not
    count), and the time in `__next__`: both fall after the first epoch.

    Confused with: storage that is slow in every epoch (`slow_storage`); a dataset that does not fit into memory
    (`page_cache_thrashing`); workers that start (`periodic_stalls`), which read nothing.

    What to do: nothing in a long training. Measure from the second epoch on. If jobs are short, copy the data to a
    local disk first, or keep it on the same machine between jobs.
    """
    epochs = epoch_reads(evidence.run, evidence.steps)
    if epochs is None or epochs.read_bytes[0] < _MIN_BYTES:
        return None
    later_bytes = float(np.mean(epochs.read_bytes[1:]))
    first_wait, later_wait = epochs.wait_frac(0, 1), epochs.wait_frac(1, len(epochs.read_bytes))
    if later_bytes > _WARM_FRAC * epochs.read_bytes[0] or first_wait < later_wait + _MIN_DIFFERENCE:
        return None
    return Finding(
        claim=f"The first epoch waits for data {percent(first_wait)} of its time, the later ones "
        f"{percent(later_wait)}: it reads from storage what they find in memory.",
        evidence=(
            f"Read from storage: {size(int(epochs.read_bytes[0]))} in the first epoch, {size(round(later_bytes))} in "
            f"each of the {count(len(epochs.read_bytes) - 1, 'later one')}.",
        ),
        numbers=known_numbers(first_wait_frac=first_wait, later_wait_frac=later_wait),
        advice="In a long training it does not matter: measure from the second epoch on. If jobs are short, copy the "
        "data to a local disk before, or run the next job on the same machine.",
        confidence=LIKELY,
        from_steps=False,
        informs_only=True,
    )


def page_cache_thrashing(evidence: Evidence) -> Finding | None:
    """Every epoch reads the dataset from storage again, because it does not fit into the memory that is free.

    Proof: the bytes read from storage are about the same in each epoch, and more than the memory that is available to
    the page cache (or more than the memory limit of the container).

    Confused with: a cold first epoch (`cold_cache`); a dataset whose epochs read other files; a network file system
    without a cache, which also reads again what would fit.

    What to do: store the samples smaller (compressed, resized, in half precision), raise the memory limit, give each
    rank its own part of the data, or copy the data to a fast local disk.
    """
    epochs = epoch_reads(evidence.run, evidence.steps)
    if epochs is None:
        return None
    smallest, largest = int(epochs.read_bytes.min()), int(epochs.read_bytes.max())
    wait = epochs.wait_frac(1, len(epochs.read_bytes))
    free_bytes = _cache_bytes(evidence.run)
    if smallest < max(_MIN_BYTES, _SAME_FRAC * largest) or wait < _MIN_DIFFERENCE or free_bytes is None:
        return None
    if smallest < _FITS_FRAC * free_bytes:
        return None
    return Finding(
        claim=f"Every epoch reads {size(smallest)} from storage again: the data does not fit into the "
        f"{size(free_bytes)} of memory that are free for it.",
        evidence=(
            f"Read from storage: {size(smallest)} to {size(largest)} in each of {len(epochs.read_bytes)} epochs; from "
            f"the second on, the loop waits for data {percent(wait)} of the time.",
        ),
        numbers=known_numbers(wait_frac=wait, epoch_bytes=smallest, free_bytes=free_bytes),
        advice="Store the samples smaller (resized, compressed, half precision), raise the memory limit of the "
        "container, or copy the data to a fast local disk. With several ranks, let each read its own part.",
        confidence=LIKELY,
        from_steps=False,
        informs_only=True,
    )


def _cache_bytes(run: Run) -> int | None:
    """Return the memory that the page cache can use: what is available, within the limit of the container."""
    values = run.host_rows["memory_available_bytes"]
    available = None if np.isnan(values).all() else float(np.nanmedian(values))
    limits = [limit for limit in (available, run.machine.memory_limit_bytes) if limit is not None]
    return int(min(limits)) if limits else None
