"""Data-parallel training over gloo with a planted delay, started by torchrun; rank 0 prints its mean step in ms."""

import argparse
import contextlib
import random
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WARM_UP_STEPS = 8


def build_model(width: int) -> torch.nn.Module:
    """Return a network of nine linear layers of this width."""
    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))


def delay_s(options: argparse.Namespace, rank: int, step: int) -> float:
    """Return how long this rank sleeps in this step."""
    if options.late == "random":  # as if the work of batches differed, on a device of its own
        return float(options.delay_ms) * random.uniform(0.7, 1.3) / 1e3
    late = {"none": False, "one": rank == 1, "rotating": rank == step % dist.get_world_size(), "all": True}
    return options.delay_ms / 1e3 if late[options.late] else 0.0


def train(options: argparse.Namespace) -> None:
    """Train on random data, and print the mean step in ms."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(build_model(options.width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    began_s = 0.0
    for step in range(options.steps):
        if step == WARM_UP_STEPS:
            began_s = time.perf_counter()
        time.sleep(delay_s(options, rank, step))
        exchanges = step % options.accumulate == options.accumulate - 1
        with contextlib.nullcontext() if exchanges else model.no_sync():
            model(torch.randn(64, options.width)).square().mean().backward()
        if exchanges:
            optimizer.step()
            optimizer.zero_grad()
    if rank == 0:
        print(1e3 * (time.perf_counter() - began_s) / (options.steps - WARM_UP_STEPS))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--late", choices=["none", "one", "rotating", "all", "random"], default="none")
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--steps", type=int, default=80)
    train(parser.parse_args())
