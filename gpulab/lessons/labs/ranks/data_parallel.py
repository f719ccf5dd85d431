"""What ranks run for data parallelism: training with a hook, buckets, accumulation, all-reduces timed and rebuilt."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from gpulab.lessons.labs.ranks.traffic import count_traffic

WIDTH, ROWS, LEARNING_RATE = 256, 64, 0.3
SUMMED_NUMBERS = 3360  # 1 to 8 ranks divide it


def timed_all_reduces(sizes: Sequence[int], repeats: int) -> dict[int, float]:
    """Return the shortest time of an all-reduce, in s, by its size in bytes. All ranks start together.

    The sizes take turns, and the shortest of all turns counts: other programs on the same cores only make it longer.
    """
    import torch
    import torch.distributed as dist

    tensors = {size: torch.zeros(size // 4) for size in sizes}
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(repeats + 2):
        for size, tensor in tensors.items():
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(tensor)
            times[size].append(time.perf_counter() - begin)
    return {size: min(values[2:]) for size, values in times.items()}


def classifier() -> Any:
    """Return the model that the ranks train: 32 inputs, 4 classes, 75,000 parameters, the same on each rank."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 4))


def train_shard(register: Callable[[Any], None], steps: int) -> dict[str, Any]:
    """Train with DistributedDataParallel, each rank on its rows; return the loss on all rows, and the bytes per step.

    `register` is called with the wrapped model, to register a communication hook. All gradients are in one bucket: with
    two, PowerSGD's all-reduces did not match between gloo ranks (torch 2.13).
    """
    import torch
    import torch.distributed as dist
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel

    from gpulab import synthetic

    rank, ranks = dist.get_rank(), dist.get_world_size()
    inputs, labels = map(torch.as_tensor, synthetic.table(2048, 32))
    model = DistributedDataParallel(classifier(), bucket_cap_mb=25)
    register(model)
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE)
    bytes_by_step = []
    for step in range(steps):
        first = (step * ranks + rank) * ROWS % len(inputs)
        rows = slice(first, first + ROWS)
        with count_traffic() as traffic:
            loss = functional.cross_entropy(model(inputs[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        bytes_by_step.append(traffic.total_bytes("all-reduce"))
    with torch.no_grad():
        loss = functional.cross_entropy(model.module(inputs), labels)
    return {"loss": loss.item(), "bytes": bytes_by_step, "gradients": sum(p.nbytes for p in model.parameters())}


def bucket_starts(cap_mb: float, layers: int = 8, width: int = 512) -> list[tuple[int, float]]:
    """Return the buckets of a backward pass, in the order in which DistributedDataParallel sends them.

    Of each: its bytes, and the share of all gradients that are ready when its all-reduce starts. `layers` linear layers
    have 1 MiB of weights each. It is the third step: DDP forms its buckets anew after the first.
    """
    import torch
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    layer_list = [nn.Linear(width, width) for _ in range(layers)]
    model = DistributedDataParallel(nn.Sequential(*layer_list), bucket_cap_mb=cap_mb)
    parameters = list(model.parameters())
    ready: list[int] = []
    starts: list[tuple[int, float]] = []

    def record_bucket(state: Any, bucket: Any) -> Any:
        starts.append((bucket.buffer().nbytes, sum(ready) / sum(p.nbytes for p in parameters)))
        return default_hooks.allreduce_hook(state, bucket)

    for parameter in parameters:
        parameter.register_hook(lambda gradient: ready.append(gradient.nbytes))
    model.register_comm_hook(None, lambda state, bucket: record_bucket(state, bucket))  # DDP checks annotations
    for _ in range(3):
        ready.clear()
        starts.clear()
        model(torch.ones(8, width)).square().mean().backward()
    return starts


def accumulated(backward: Callable[[Any, Any], None], micro_batches: int) -> dict[str, Any]:
    """Accumulate the gradients of one update; return the all-reduces, and the gradient of the first layer.

    `backward` gets the wrapped model and the micro-batches, a list of pairs of inputs and labels.
    """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from gpulab import synthetic

    inputs, labels = map(torch.as_tensor, synthetic.table(2048, 32))
    model = DistributedDataParallel(classifier())
    first = dist.get_rank() * micro_batches
    parts = [slice((first + index) * ROWS, (first + index + 1) * ROWS) for index in range(micro_batches)]
    batches = [(inputs[part], labels[part]) for part in parts]
    backward(model, batches)  # in the first step, DDP forms its buckets anew
    model.zero_grad()
    with count_traffic() as traffic:
        backward(model, batches)
    return {
        "collectives": traffic.count("all-reduce"),
        "bytes": traffic.total_bytes("all-reduce"),
        "gradient": model.module[0].weight.grad,
    }


def summed(all_reduce: Callable[[Any], Any]) -> dict[str, Any]:
    """Add a tensor over all ranks by this function; return the sum, the calls of this rank, and what it sends itself.

    `sent` is in multiples of the tensor's bytes, and counts sends only: what a collective sends is up to its backend.
    """
    import torch
    import torch.distributed as dist

    tensor = (torch.arange(SUMMED_NUMBERS) % 101 * (1 + dist.get_rank())).float()  # whole numbers: sums are exact
    size = tensor.nbytes
    with count_traffic() as traffic:
        total = all_reduce(tensor)
    kinds = [transfer.kind for transfer in traffic.transfers]
    return {"sum": total, "kinds": kinds, "sent": traffic.total_bytes("send") / size}


def steps_per_second(rows: int, steps: int, width: int = 512, layers: int = 4) -> float:
    """Return the steps per s of a model with `layers` MiB of weights and this batch per rank."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)]))
    optimizer, batch = torch.optim.SGD(model.parameters(), 0.01), torch.ones(rows, width)
    times = []
    for _ in range(steps + 2):
        dist.barrier()
        begin = time.perf_counter()
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begin)
    return 1 / sorted(times[2:])[steps // 2]
