"""How long an operator takes that PyTorch computes on several threads, measured after a loop that had too few cores.

If other programs compute on the same cores, one of the threads waits for a core, and the others wait for this thread.
Each parallel operator then takes as long as the scheduler lets another program run: some milliseconds.
"""

from __future__ import annotations

import sys
from time import perf_counter_ns  # bound here: the program may replace the functions of the module
from typing import Any

import numpy as np

from gpulab.rows import Rows
from gpulab.run_facts import CLEAR_SLOWDOWN

_MIN_DELAYED_FRAC = 0.1  # of the time: the main thread waited for a core at least as long
_GRAIN = 32_768  # elements that PyTorch leaves to one thread
_MOST_CHUNKS = 16
# Whether threads wait for each other changes every few hundred milliseconds, with the cores that they are put on.
_SPAN_NS = 20_000_000
_MIN_SPANS, _MAX_SPANS = 3, 20  # a thread loses its core only after some milliseconds of computing


def parallel_operator_times(host_samples: Rows) -> dict[str, str]:
    """Return the time of an addition on all threads of PyTorch, and on one, as facts in ns; {} if cores were free.

    Nothing is measured on a machine with free cores, where it could start the first threads of a program.
    """
    torch = sys.modules.get("torch")
    if torch is None or torch.get_num_threads() < 2 or _delayed_frac(host_samples) < _MIN_DELAYED_FRAC:
        return {}
    chunks = min(torch.get_num_threads(), _MOST_CHUNKS)
    values = torch.empty(chunks * _GRAIN, dtype=torch.float32, device="cpu")
    with torch.no_grad():
        values.zero_()
        serial_ns = _mean_ns(values, _GRAIN)
        parallel_ns = _mean_ns(values, chunks * _GRAIN, CLEAR_SLOWDOWN * serial_ns)  # a longer one says no more
    return {"parallel_add_ns": str(round(parallel_ns)), "serial_add_ns": str(round(serial_ns))}


def _mean_ns(values: Any, part: int, enough_ns: float = 0.0) -> float:
    """Return the mean time to add a number to all values, in parts of this size; measure on until it is `enough_ns`.

    It is the mean over spans of time: additions are many in those in which no thread waits.
    """
    parts = values.split(part)
    span_means_ns: list[float] = []
    for span in range(_MAX_SPANS):
        if span >= _MIN_SPANS and sum(span_means_ns) >= enough_ns * span:
            break
        count, start_ns, passed_ns = 0, perf_counter_ns(), 0
        while passed_ns < _SPAN_NS:
            for values_of_part in parts:
                values_of_part.add_(1.0)
            count += 1
            passed_ns = perf_counter_ns() - start_ns
        span_means_ns.append(passed_ns / count)
    return sum(span_means_ns) / len(span_means_ns)


def _delayed_frac(host_samples: Rows) -> float:
    """Return the share of the time in which the main thread waited for a core; 0 if unknown."""
    rows = np.flatnonzero(~np.isnan(host_samples["main_delayed_s"]))
    if len(rows) < 2:
        return 0.0
    first, last = rows[0], rows[-1]
    waited_s = host_samples["main_delayed_s"][last] - host_samples["main_delayed_s"][first]
    return float(waited_s / max(1, host_samples["at_ns"][last] - host_samples["at_ns"][first]) * 1e9)
