"""A GPU that is held and not used, and GPUs that are used or not held."""

from dataclasses import replace

import numpy as np

from gpulab.tables import GPU_SAMPLES
from tests.support.runs.made_runs import MS, rows, run_of

GIB = float(1 << 30)


def sensed(util, used_bytes, *, minutes=10.0, others_bytes=np.nan, device=0):
    absent = {column.name: np.nan for column in GPU_SAMPLES.columns}
    told = [
        {
            **absent,
            "at_ns": 1000 * MS * number,
            "late_ns": 0,
            "device": device,
            "util_frac": util(number),
            "memory_used_bytes": used_bytes,
            "others_memory_bytes": others_bytes,
        }
        for number in range(round(60 * minutes))
    ]
    return replace(run_of(windows=[], gpu_rows=rows(GPU_SAMPLES, told)), span_ns=round(60e9 * minutes))


def provoked_by_a_cell_that_waits_for_its_user():
    return sensed(lambda number: 0.9 if number < 20 else 0.0, 12 * GIB)


def spared_by_a_loop_that_starves_its_gpu():
    return sensed(lambda number: 0.2, 12 * GIB)


def spared_by_memory_of_another_process():
    return sensed(lambda number: 0.0, 12 * GIB, others_bytes=11.8 * GIB)


def spared_by_a_gpu_that_was_only_touched():
    return sensed(lambda number: 0.0, 0.5 * GIB)


def spared_by_a_short_run():
    return sensed(lambda number: 0.0, 12 * GIB, minutes=1.0)


def spared_where_utilisation_is_not_told():
    return sensed(lambda number: np.nan, 12 * GIB)
