"""Features of PyTorch on the virtual GPU: each is a short program that raises an error if it does not run."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.virtual.public.trainers import MODULES, TRAINERS

_PROGRAMS: dict[str, Callable[[], None]] = {}
_MODULES = {
    "gradient_checkpointing": ("torch.utils.checkpoint",), "flex_attention": ("torch.nn.attention.flex_attention",),
    "one_rank_nccl": ("torch.distributed",), "one_rank_ddp": ("torch.nn.parallel",),
    "weight_averaging": ("torch.optim.swa_utils",), "vmap_and_grad": ("torch.func",),
}  # fmt: skip
WIDTH = 32


def feature(program: Callable[[], None]) -> Callable[[], None]:
    """Register a program under its name."""
    _PROGRAMS[program.__name__] = program
    return program


def load(name: str) -> None:
    """Import the modules that a feature or trainer needs."""
    for module in (*_MODULES.get(name, ()), *MODULES.get(name, ())):
        importlib.import_module(module)


def encoder() -> Any:
    """Return a small transformer encoder on the GPU."""
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(WIDTH, 4)).cuda()


def train(model: Any, autocast: Any = None, scaler: Any = None, optimizer: Any = None, steps: int = 3) -> None:
    """Train a model of sequences for some steps."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        inputs, labels = torch.randn(2, 8, WIDTH).cuda(), torch.randint(0, 4, (2, 8)).cuda()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
            loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    assert loss.item() == loss.item()


@feature
def autocast_bfloat16() -> None:
    """Mixed precision in bfloat16."""
    train(encoder(), torch.bfloat16)


@feature
def autocast_float16_and_grad_scaler() -> None:
    """Mixed precision in float16 with a gradient scaler and clipping."""
    scaler = torch.amp.GradScaler("cuda")
    train(encoder(), torch.float16, scaler)
    assert scaler.get_scale() > 0


@feature
def gradient_checkpointing() -> None:
    """Both kinds of activation checkpointing."""
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential

    model = encoder()
    for use_reentrant in (True, False):
        inputs = torch.randn(2, 8, WIDTH, device="cuda", requires_grad=True)
        checkpoint(model, inputs, use_reentrant=use_reentrant).sum().backward()
        checkpoint_sequential(model, 2, inputs, use_reentrant=use_reentrant).sum().backward()


@feature
def compile() -> None:
    """`torch.compile` of a model, of a function, and as a method."""
    train(torch.compile(encoder()))
    model = encoder()
    model.compile(mode="reduce-overhead")
    train(model)

    @torch.compile(fullgraph=True)
    def gelu(x: Any) -> Any:
        return x * torch.sigmoid(1.702 * x)

    gelu(torch.randn(8, device="cuda"))


@feature
def sdpa() -> None:
    """Scaled dot-product attention: all backends, causal, masks, grouped queries."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (torch.randn(2, 4, 16, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    attention = nn.functional.scaled_dot_product_attention
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH):
        with sdpa_kernel(backend):
            attention(q, k, v, is_causal=True).sum().backward()
    mask = torch.ones(16, 16, dtype=torch.bool, device="cuda").tril()
    attention(q, k, v, attn_mask=mask).sum().backward()
    attention(q, k[:, :2], v[:, :2], enable_gqa=True).sum().backward()


@feature
def flex_attention() -> None:
    """FlexAttention with a score function and a block mask, eager and compiled."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = (torch.randn(1, 2, 256, 32, device="cuda", requires_grad=True) for _ in range(3))
    flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (i - j)).sum().backward()
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 256, 256, device="cuda")
    torch.compile(flex_attention)(q, k, v, block_mask=mask).sum().backward()


@feature
def cuda_graph() -> None:
    """Capture and replay of a CUDA graph."""
    model, inputs = encoder(), torch.randn(2, 8, WIDTH, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        model(inputs)
    graph.replay()


def _join_group(port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1",
                   "LOCAL_RANK": "0"}  # fmt: skip
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", 0))


@feature
def one_rank_nccl() -> None:
    """Collectives in a process group of one rank."""
    from torch import distributed

    _join_group(29711)
    assert distributed.get_backend() == "nccl"
    values = torch.arange(4, device="cuda")
    gathered = [torch.zeros_like(values)]
    distributed.all_reduce(values)
    distributed.all_gather(gathered, values)
    distributed.broadcast(values, 0)
    distributed.barrier()
    assert gathered[0].tolist() == [0, 1, 2, 3]
    distributed.destroy_process_group()


@feature
def one_rank_ddp() -> None:
    """DistributedDataParallel with one rank, and accumulation without synchronisation."""
    _join_group(29712)
    model = nn.parallel.DistributedDataParallel(encoder(), device_ids=[0])
    train(model)
    with model.no_sync():
        model(torch.randn(2, 8, WIDTH)).sum().backward()
    torch.distributed.destroy_process_group()


@feature
def fsdp() -> None:
    """FSDP2 with one rank."""
    from torch.distributed.fsdp import fully_shard

    _join_group(29713)
    model = encoder()
    fully_shard(model)
    train(model)


@feature
def fused_optimizers() -> None:
    """Fused, foreach and capturable optimizers, with schedulers and accumulation."""
    variants: tuple[dict[str, Any], ...] = ({"fused": True}, {"foreach": True}, {"capturable": True})
    for options in variants:
        model = encoder()
        train(model, optimizer=torch.optim.AdamW(model.parameters(), **options))
    model = encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    train(model, optimizer=optimizer)
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10).step()


@feature
def weight_averaging() -> None:
    """Averages of the weights, as in SWA and EMA."""
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)).cuda()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for _ in range(2):
        average.update_parameters(model)
    update_bn([torch.randn(4, WIDTH)], average, device=torch.device("cuda"))


@feature
def vmap_and_grad() -> None:
    """Gradients of each sample with torch.func."""
    from torch.func import functional_call, grad, vmap

    model = nn.Linear(WIDTH, 1).cuda()
    parameters = dict(model.named_parameters())

    def loss(weights: Any, sample: Any) -> Any:
        return functional_call(model, weights, (sample[None],)).square().mean()

    gradients = vmap(grad(loss), in_dims=(None, 0))(parameters, torch.randn(8, WIDTH, device="cuda"))
    assert gradients["weight"].shape == (8, 1, WIDTH)


@feature
def activations_on_the_host() -> None:
    """Activations are offloaded to the host between forward and backward."""
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        loss = encoder()(torch.randn(2, 8, WIDTH, device="cuda")).sum()
    loss.backward()


FEATURES: dict[str, Callable[[], None]] = {**_PROGRAMS, **TRAINERS}
