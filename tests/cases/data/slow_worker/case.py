"""One DataLoader worker that is slower than its siblings."""

from dataclasses import replace

import numpy as np

from gpulab.tables import WORKER_SAMPLES
from tests.support.runs.made_loading_runs import WORKERS, from_workers
from tests.support.runs.made_runs import rows


def run(*shares, wait_ms=40.0, seconds=3.0):
    """Workers with these shares of CPU time and of time blocked on storage."""
    generator = np.random.default_rng(1)
    looks = [
        {
            "at_ns": round(at * 1e9),
            "worker": worker,
            "cpu_s": at * cpu,
            "blocked": float(generator.random() < blocked),
            "read_bytes": 0.0,
            "threads": 1.0,
        }
        for at in np.arange(0, seconds, 0.1)
        for worker, (cpu, blocked) in enumerate(shares)
    ]
    made = from_workers(wait_ms=wait_ms, loader=replace(WORKERS, workers=len(shares)))
    return replace(made, worker_rows=rows(WORKER_SAMPLES, looks))


def provoked_by_a_worker_that_computes_while_the_others_rest():
    return run((0.98, 0), (0.2, 0), (0.25, 0), (0.15, 0))


def provoked_by_a_worker_whose_files_are_slow():
    return run((0.1, 0.1), (0.05, 0.95))


def spared_because_all_of_them_work():
    return run((0.9, 0), (0.85, 0), (0.95, 0), (0.9, 0))


def spared_because_all_of_them_wait_for_storage():
    return run((0.1, 0.8), (0.1, 0.9))


def spared_because_the_loop_does_not_wait():
    return run((0.98, 0), (0.2, 0), (0.2, 0), (0.2, 0), wait_ms=1.0)


def spared_because_the_others_have_work_too():
    return run((0.98, 0), (0.7, 0))


def spared_because_it_was_seen_for_a_moment():
    return run((0.98, 0), (0.2, 0), seconds=0.6)
