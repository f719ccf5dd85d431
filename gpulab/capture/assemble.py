"""Several stretches of one cell, each read as a run of its own, put together on the cell's clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpulab.run import Machine, Run
from gpulab.tables import EVENTS, Rows, concat


def merged(cell: Run, stretches: Sequence[Run]) -> Run:
    """`cell` with the events of all stretches, shifted from each stretch's own start to the cell's."""
    if not stretches:
        return cell
    threads: dict[str, int] = {}
    parts = [_moved(stretch, cell, threads) for stretch in stretches]
    fullest = max(stretches, key=lambda stretch: len(stretch.event_rows))
    main = fullest.threads[fullest.main_thread] if fullest.threads else None
    return replace(
        cell,
        event_rows=concat(EVENTS, parts),
        threads=tuple(threads),
        main_thread=threads[main] if main is not None else 0,
        machine=_with_multiprocessors(cell.machine, fullest.machine),
    )


def _moved(stretch: Run, cell: Run, threads: dict[str, int]) -> Rows:
    """The stretch's events on the cell's clock, its threads numbered as the cell numbers them."""
    codes = [threads.setdefault(name, len(threads)) for name in stretch.threads]
    assert stretch.began_ns is not None, "a trace written here tells its own time"
    assert cell.began_ns is not None
    rows = stretch.event_rows.shifted(stretch.began_ns - cell.began_ns, "start_ns")
    renumbered = np.array([*codes, -1], np.int32)[rows["thread"]]
    return EVENTS.rows({**rows.columns, "thread": renumbered})


def _with_multiprocessors(asked: Machine, traced: Machine) -> Machine:
    """NVML does not tell the number of multiprocessors; the trace does."""
    known = {gpu.name: gpu for gpu in traced.gpus}
    gpus = tuple(
        replace(gpu, multiprocessors=gpu.multiprocessors or known[gpu.name].multiprocessors)
        if gpu.name in known
        else gpu
        for gpu in asked.gpus
    )
    return replace(asked, gpus=gpus or traced.gpus)
