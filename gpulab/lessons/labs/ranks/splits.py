"""One toy model split over ranks in four ways: data, pipeline, tensor, fully sharded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpulab.lessons.labs.ranks.traffic import RankTraffic, count_traffic

WIDTH, HIDDEN, ROWS = 64, 256, 32  # the model: x @ up, GELU, @ down; ROWS samples in a global batch
SPLITS = ("data", "pipeline", "tensor", "fully sharded")
WEIGHT_BYTES = 4 * 2 * WIDTH * HIDDEN
INPUT_BYTES = 4 * ROWS * WIDTH  # of a batch at the input, and at the output
HIDDEN_BYTES = 4 * ROWS * HIDDEN  # of a batch between both layers


def toy_weights() -> tuple[Any, Any, Any]:
    """Return both weights and a batch, the same on each rank."""
    import torch

    torch.manual_seed(1)
    return torch.randn(WIDTH, HIDDEN) / 8, torch.randn(HIDDEN, WIDTH) / 16, torch.randn(ROWS, WIDTH)


def sum_forward(tensor: Any) -> Any:
    """Add a tensor over all ranks in the forward pass; pass gradients on as they are."""
    return _summing()[0].apply(tensor)


def sum_backward(tensor: Any) -> Any:
    """Pass a tensor on as it is; add its gradients over all ranks in the backward pass."""
    return _summing()[1].apply(tensor)


def _summing() -> tuple[Any, Any]:
    import torch
    import torch.distributed as dist

    class SumForward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: Any) -> Any:
            total = tensor.clone()
            dist.all_reduce(total)
            return total

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    class SumBackward(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: Any) -> Any:
            return tensor.view_as(tensor)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            total = gradient.clone()
            dist.all_reduce(total)
            return total

    return SumForward, SumBackward


def split_step(my_part: Callable[..., Any], forward: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    """Run a forward and a backward pass with each split; return what this rank stores, sends and computes.

    `my_part(up, down, rank, ranks)` and `forward(x, columns, rows)` are the tensor split.
    """
    steps = {
        "data": _data_step,
        "pipeline": _pipeline_step,
        "tensor": lambda: _tensor_step(my_part, forward),
        "fully sharded": _fully_sharded_step,
    }
    return {name: steps[name]() for name in SPLITS}


def whole_gradient() -> Any:
    """Return the gradient of `up` without any split, for comparison."""
    up, down, x = toy_weights()
    up.requires_grad_()
    _loss(_block(x, up, down)).backward()
    return up.grad


def _block(x: Any, up: Any, down: Any) -> Any:
    from torch.nn import functional

    return functional.gelu(x @ up) @ down


def _loss(result: Any) -> Any:
    return result.square().mean()


def _outcome(traffic: RankTraffic, stored: int, gradient: Any) -> dict[str, Any]:
    return {
        "stored": stored,
        "kinds": [transfer.kind for transfer in traffic.transfers],
        "bytes": traffic.total_bytes(),
        "gradient": gradient,  # of `up`: all of it, this rank's part of it, or None
    }


def _model() -> Any:
    """Return the block as a module of two linear layers without bias, with the toy weights."""
    from torch import nn

    up, down, _ = toy_weights()
    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN, bias=False), nn.GELU(), nn.Linear(HIDDEN, WIDTH, bias=False))
    for layer, weight in ((model[0], up), (model[2], down)):
        layer.weight = nn.Parameter(weight.T.contiguous())
    return model


def _my_rows() -> Any:
    import torch.distributed as dist

    return toy_weights()[2].chunk(dist.get_world_size())[dist.get_rank()]


def _data_step() -> dict[str, Any]:
    from torch.nn.parallel import DistributedDataParallel

    model: Any = DistributedDataParallel(_model())
    with count_traffic() as traffic:
        _loss(model(_my_rows())).backward()
    weights = list(model.parameters())
    return _outcome(traffic, sum(weight.nbytes for weight in weights), weights[0].grad.T)


def _fully_sharded_step() -> dict[str, Any]:
    from torch.distributed.fsdp import fully_shard

    model = _model()
    for layer in (model[0], model[2]):
        fully_shard(layer, reshard_after_forward=True)
    fully_shard(model)
    with count_traffic() as traffic:
        _loss(model(_my_rows())).backward()
    shards = [weight.to_local() for weight in model.parameters()]
    gradient = model[0].weight.grad.to_local().T  # rows of the Linear's weight are columns of `up`
    return _outcome(traffic, sum(shard.nbytes for shard in shards), gradient)


def _tensor_step(my_part: Callable[..., Any], forward: Callable[..., Any]) -> dict[str, Any]:
    import torch.distributed as dist

    up, down, x = toy_weights()
    parts = my_part(up, down, dist.get_rank(), dist.get_world_size())
    columns, rows = (part.clone().requires_grad_() for part in parts)
    with count_traffic() as traffic:
        _loss(forward(x.requires_grad_(), columns, rows)).backward()
    return _outcome(traffic, columns.nbytes + rows.nbytes, columns.grad)


def _pipeline_step() -> dict[str, Any]:
    """Rank 0 has `up`, the last rank `down`; others have nothing to do."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional

    up, down, x = toy_weights()
    if dist.get_rank() == 0:
        up.requires_grad_()
        with count_traffic() as traffic:
            activations = functional.gelu(x @ up)
            dist.send(activations.detach(), 1)
            gradient = torch.empty_like(activations)
            dist.recv(gradient, 1)
            activations.backward(gradient)
        return _outcome(traffic, up.nbytes, up.grad)
    down.requires_grad_()
    with count_traffic() as traffic:
        hidden: Any = torch.empty(ROWS, HIDDEN)
        dist.recv(hidden, 0)
        _loss(hidden.requires_grad_() @ down).backward()
        dist.send(hidden.grad, 0)
    return _outcome(traffic, down.nbytes, None)
