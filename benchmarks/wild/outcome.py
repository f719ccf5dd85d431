"""One run of one variant: its time, and what shows that it trained as the other variants did."""

import dataclasses
import json
import resource
import sys
import time
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.wild.loop import WARM_SCALE, Change, Loop, prepared_cell


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one run of a cell took and trained."""

    seconds: float
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
            start = time.perf_counter()
            exec(code, namespace)
            seconds = time.perf_counter() - start
            samples = int(eval(loop.samples, namespace))
            loss = float(eval(loop.loss, namespace))
    finally:
        hook.remove()
    return Outcome(seconds, samples, loss, step_count, peak_memory_mib())


def run_variant(loop: Loop, change: Change | None, scale: float) -> Outcome:
    """Run the cell once to warm up if the loop wants that and the scale is larger, then run it as measured."""
    if loop.warm and scale > WARM_SCALE:
        run_once(loop, change, WARM_SCALE)
    return run_once(loop, change, scale)


def write_outcome(outcome: Outcome, path: Path) -> None:
    """Write the outcome as JSON."""
    path.write_text(json.dumps(dataclasses.asdict(outcome)))


def read_outcome(path: Path) -> Outcome:
    """Read what `write_outcome` wrote."""
    return Outcome(**json.loads(path.read_text()))
