"""Which ranks of a large job a table or a picture shows, and how they are called."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpulab.analysis.ranks.waits import JobWaits
from gpulab.run import Run

MAX_RANKS = 16  # rows of a table or lanes of a picture that are readable at once


def rank_label(run: Run, index: int) -> str:
    """Return the number of the rank of a run; its position in the job if it was not recorded."""
    return str(index if run.rank is None else run.rank)


def most_telling_ranks(waits: JobWaits, limit: int = MAX_RANKS) -> tuple[int, ...]:
    """Return the indices of at most `limit` ranks, in order: those that others wait for most, and that wait most."""
    count = len(waits.matched.ranks)
    if count <= limit:
        return tuple(range(count))
    awaited = np.argsort(-waits.caused_ns, kind="stable")
    awaited = awaited[waits.caused_ns[awaited] > 0][: limit // 2]
    others = [index for index in np.argsort(-waits.waits_ns, kind="stable").tolist() if index not in awaited]
    return tuple(sorted([*awaited.tolist(), *others[: limit - len(awaited)]]))


def choice_sentence(chosen: Sequence[int], count: int) -> str:
    """Say which ranks are listed, if not all are; "" otherwise."""
    if len(chosen) == count:
        return ""
    return f" {len(chosen)} of {count:,} ranks: those that others wait for most, and those that wait most."
