"""One run of one variant: its time, and what shows that it trained as the other variants did."""

import dataclasses
import gc
import json
import resource
import sys
import time
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.wild.loop import WARM_SCALE, Change, Loop, prepared_cell

UNCHANGED = "unchanged"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one run of a cell took and trained."""

    seconds: float
    cpu_seconds: float  # of all threads of this process, without its worker processes
    samples: int
    loss: float
    optimizer_steps: int
    peak_memory_mib: float


def peak_memory_mib() -> float:
    """The largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def run_once(loop: Loop, change: Change | None, scale: float) -> Outcome:
    """Run the cell once in this process."""
    step_count = 0

    def count_step(*_: object) -> None:
        nonlocal step_count
        step_count += 1

    hook = register_optimizer_step_post_hook(count_step)
    try:
        with prepared_cell(loop, change, scale) as (code, namespace):
            start, cpu_start = time.perf_counter(), time.process_time()
            exec(code, namespace)
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # the cell may end before the GPU does
            seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
            samples = int(eval(loop.samples, namespace))
            loss = float(eval(loop.loss, namespace))
    finally:
        hook.remove()
    return Outcome(seconds, cpu_seconds, samples, loss, step_count, peak_memory_mib())


def run_variant(loop: Loop, change: Change | None, scale: float) -> Outcome:
    """Run the cell once to warm up if the loop wants that and the scale is larger, then run it as measured."""
    if loop.warm and scale > WARM_SCALE:
        run_once(loop, change, WARM_SCALE)
    return run_once(loop, change, scale)


def run_all_variants(loop: Loop, scale: float) -> dict[str, Outcome]:
    """Run the unchanged cell and every change once in this process."""
    threads = torch.get_num_threads()
    run_once(loop, None, scale)
    outcomes = {UNCHANGED: run_once(loop, None, scale)}
    for change in loop.changes:
        torch.set_num_threads(threads)  # a change may have set another number, or switched the collector off
        gc.enable()
        outcomes[change.name] = run_once(loop, change, scale)
    return outcomes


def write_outcomes(outcomes: dict[str, Outcome], path: Path) -> None:
    """Write the outcomes as JSON."""
    path.write_text(json.dumps({variant: dataclasses.asdict(outcome) for variant, outcome in outcomes.items()}))


def read_outcomes(path: Path) -> dict[str, Outcome]:
    """Read what `write_outcomes` wrote."""
    return {variant: Outcome(**fields) for variant, fields in json.loads(path.read_text()).items()}
