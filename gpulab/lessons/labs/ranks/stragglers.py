"""Four ranks of which one is slow: when each arrives at the all-reduce, and a recording of them by gpulab."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

WORK_S, DELAY_S, SLEEP_S = 0.02, 0.08, 0.1  # SLEEP_S: in recorded_steps
SLOW_RANK, LATE_RANK = 2, 1  # in slow_steps, in recorded_steps; the notebook asks for them


def slow_steps(steps: int, slow_rank: int = SLOW_RANK) -> dict[str, list[float]]:
    """Run steps of sleep and an all-reduce; return by step when this rank began, arrived and left, in s.

    The clock is the same on all ranks of a machine. The slow rank works for DELAY_S longer.
    """
    import torch
    import torch.distributed as dist

    tensor = torch.ones(1000)
    work_s = WORK_S + (DELAY_S if dist.get_rank() == slow_rank else 0)
    times: dict[str, list[float]] = {"began": [], "arrived": [], "left": []}
    dist.barrier()
    for _ in range(steps):
        times["began"].append(time.monotonic())
        time.sleep(work_s)
        times["arrived"].append(time.monotonic())
        dist.all_reduce(tensor)
        times["left"].append(time.monotonic())
    return times


def recorded_steps(folder: str, slow_rank: int = LATE_RANK, steps: int = 10) -> None:
    """Train on this rank, and save a recording of gpulab as `rankN.gpulab` in the folder."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from gpulab.capture.profile_block import profile
    from gpulab.lessons.labs.ranks.data_parallel import classifier
    from gpulab.store import save

    rank = dist.get_rank()
    model = DistributedDataParallel(classifier())
    optimizer, batch = torch.optim.SGD(model.parameters(), 0.01), torch.ones(64, 32)

    def train(count: int) -> None:
        for _ in range(count):
            if rank == slow_rank:
                time.sleep(SLEEP_S)
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    train(2)
    dist.barrier()
    with profile(f"rank{rank}", steps=steps) as session:
        train(steps + 8)
    run: Any = session.run
    save(run, Path(folder) / f"rank{rank}.gpulab")
