"""What workers of a DataLoader do in a process that may use one core, or more: their cores, the wait of the loop.

The items cost CPU time, the "GPU step" is a declared sleep: what waits for a core is real.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ITEMS, BATCH, WORKERS = 32, 4, 2
ITEM_CPU_S, STEP_S = 0.01, 0.01
_MOST_ROUNDS = 10  # times the rounds that are asked for

_PROGRAM = (
    "import sys; from gpulab.lessons.labs.machine.scheduling.core_wait import run_epochs; run_epochs(sys.argv[1])"
)


class CoreNumberDataset:
    """Items that need CPU time; an item is the number of the core on which it was computed, or -1 if unknown."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> int:
        from gpulab.lessons.labs.data.loading import burn_cpu

        burn_cpu(ITEM_CPU_S)
        return core_number()


@dataclass(frozen=True, kw_only=True)
class CoreEpoch:
    """An epoch with a number of cores, the fastest of several; `used`: the number of cores that worked."""

    cores: int
    wall_s: float
    wait_s: float  # of the loop for the loader
    used: int
    suggested: int  # workers, at most, that PyTorch suggests for these cores

    @property
    def wait_frac(self) -> float:
        """Share of the epoch in which the loop waits."""
        return self.wait_s / self.wall_s


def core_number() -> int:
    """Return the core on which this thread runs, or last ran; -1 where the system does not tell."""
    try:
        text = Path("/proc/thread-self/stat").read_text(encoding="ascii")
    except OSError:
        return -1
    return int(text.rpartition(")")[2].split()[36])


def epochs_with_cores(cores: Sequence[int], rounds: int = 6) -> dict[int, CoreEpoch]:
    """Start a process, limit it to each number of cores in turn, and return the fastest epoch of each.

    `used` is the largest of all epochs; there are more rounds if other programs left the workers fewer cores than they
    may use. Cores that the system does not have are not used.
    """
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[5])}
    task = json.dumps({"cores": list(cores), "rounds": rounds})
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, task], env=environment, capture_output=True, text=True, check=True
    )
    epochs = [CoreEpoch(**one) for one in json.loads(done.stdout)]
    fastest = {count: min((one for one in epochs if one.cores == count), key=lambda one: one.wall_s) for count in cores}
    return {
        count: CoreEpoch(
            cores=count,
            wall_s=epoch.wall_s,
            wait_s=epoch.wait_s,
            used=max(one.used for one in epochs if one.cores == count),
            suggested=epoch.suggested,
        )
        for count, epoch in fastest.items()
    }


def run_epochs(task: str) -> None:
    """Run epochs in this process, in turn with each number of cores, and write what was measured as JSON."""
    settings, epochs = json.loads(task), []
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    most_used: dict[int, int] = dict.fromkeys(settings["cores"], 0)
    for turn in range(_MOST_ROUNDS * settings["rounds"]):
        for count in settings["cores"]:
            if turn >= settings["rounds"] and most_used[count] >= min(count, WORKERS, len(available)):
                continue  # further rounds are for workers that other programs left only one core
            if available:
                os.sched_setaffinity(0, available[:count])  # workers inherit it
            epoch = _one_epoch()
            most_used[count] = max(most_used[count], epoch["used"])
            epochs.append({"cores": count, "suggested": suggested_workers(), **epoch})
    sys.stdout.write(json.dumps(epochs))


def _one_epoch() -> dict[str, Any]:
    """Run an epoch with a sleep after each batch."""
    from torch.utils.data import DataLoader

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there are more workers than cores
        loader: Any = DataLoader(CoreNumberDataset(), batch_size=BATCH, num_workers=WORKERS)  # type: ignore[arg-type]
    begin, wait_s, numbers = time.perf_counter(), 0.0, set[int]()
    batches = iter(loader)
    while True:
        clock_s = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            return {"wall_s": time.perf_counter() - begin, "wait_s": wait_s, "used": len(numbers)}
        wait_s += time.perf_counter() - clock_s
        numbers |= set(batch.tolist())
        time.sleep(STEP_S)


def suggested_workers(many: int = 1000) -> int:
    """Return how many workers PyTorch suggests at most, according to its warning about `many` of them."""
    from torch.utils.data import DataLoader

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DataLoader(CoreNumberDataset(), num_workers=many)  # type: ignore[arg-type]
    numbers = [re.search(r"in current system is (\d+)", str(one.message)) for one in caught]
    return next((int(match[1]) for match in numbers if match), many)
