"""Programs that run out of memory, each for a reason of its own, and remedies in the order of their price.

All are the same small transformer; they differ in sizes and in which remedies are in place. They are CUDA code, for a
GPU or a virtual one; on the CPU they run as well, where their results can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from gpulab.hardware.lookup import resolve
from gpulab.run import Run
from gpulab.virtual.memory_fit.memory import allowances
from gpulab.virtual.session import VirtualGpu

if TYPE_CHECKING:
    from torch import Tensor

CARD = "l4"  # a card of 22 GiB: small enough to fill, and it has bfloat16
HEAD = 64  # numbers in one head of attention
NUMBER_BYTES = 4  # of a float32


@dataclass(frozen=True, kw_only=True)
class Program:
    """One training run: its sizes, and how it uses memory."""

    width: int = 1024
    layers: int = 4
    batch: int = 8
    length: int = 512
    steps: int = 2
    half: bool = False  # bfloat16 where autocast says so
    fused: bool = True  # one attention operator; else its formula, written out
    parts: int = 1  # of each batch, one after the other, whose gradients add up
    recomputed: bool = False  # of each layer only its input is kept for backward
    state: str = "adam"  # the optimizer: "adam" keeps two numbers for each weight, "momentum" one
    validates: bool = False  # after each step, the loss on a few samples is written down
    keeps_graphs: bool = True  # as a tensor with its graph; else without


# In the order of their price; each takes a program and gives one that needs less memory.
REMEDIES: Mapping[str, Callable[[Program], Program]] = {
    "detach": lambda program: replace(program, keeps_graphs=program.keeps_graphs and not program.validates),
    "half": lambda program: replace(program, half=True),
    "fused": lambda program: replace(program, fused=True),
    "parts": lambda program: replace(program, parts=min(4, program.batch)),
    "recompute": lambda program: replace(program, recomputed=True),
    "state": lambda program: replace(program, state="momentum"),
}


# Five programs that run out of memory on CARD, each for another reason.
CASES: Mapping[str, Program] = {
    "wide": Program(width=5632, layers=4, batch=1, length=256),
    "many": Program(layers=2, batch=192, length=1024),
    "long": Program(layers=1, batch=1, length=16384, fused=False),
    "more": Program(layers=2, batch=320, length=1024, half=True),
    "later": Program(layers=1, batch=4, length=12288, steps=32, validates=True),
}
# Two reasons at once, to be made to fit with as few remedies as possible.
BOTH = Program(width=5632, layers=4, batch=4, length=2048)


def mended(program: Program, names: Sequence[str]) -> Program:
    """The program with these remedies in place."""
    for name in names:
        program = REMEDIES[name](program)
    return program


def small(program: Program) -> Program:
    """The same program in a size that a CPU trains in a moment, to compare results."""
    return replace(program, width=HEAD, layers=1, batch=min(program.batch, 4), length=16, steps=2)


def fits(program: Program, name: str = "attempt", card: str = CARD) -> bool:
    """Whether the program runs on a virtual card; gpulab.runs[name] is the recording either way."""
    import torch

    try:
        with VirtualGpu(card, name):
            train(program)
    except torch.OutOfMemoryError:
        return False
    return True


def rise_bytes(run: Run, skip: int = 3) -> int:
    """By how much memory in use grows in a step, after the first few; 0 where no step shows it.

    Taken over two steps each: a block that is used in every second step would else look like growth.
    """
    used = run.allocator_rows["allocated_bytes"].tolist()[skip:]  # where each step began, and where the recording did
    grown = [(later - sooner) / 2 for sooner, later in zip(used, used[2:], strict=False)]
    return round(median(grown)) if grown else 0


def states_bytes(program: Program) -> int:
    """What is there whatever the batch: a weight, its gradient, and one or two numbers of the optimizer."""
    import torch

    with torch.device("meta"):  # shapes without memory
        weights = sum(int(each.numel()) for each in _blocks(program).parameters())
    return weights * NUMBER_BYTES * (3 if program.state == "momentum" else 4)


def room_bytes(card: str = CARD) -> int:
    """Of a virtual card, what is left for tensors."""
    known = resolve(card)
    return known.usable_bytes - sum(each.bytes for each in allowances(known))


def train(program: Program, device: str = "cuda", seed: int = 0) -> dict[str, list[Tensor]]:
    """Train as the program says; gives the loss of each step, and the gradients of the first weights at the end."""
    import torch

    torch.manual_seed(seed)
    with torch.device(device):
        blocks = _blocks(program)
    optimizer = _optimizer(program, blocks)
    losses, history = [], []
    for _ in range(program.steps):
        tokens = torch.randn(program.batch, program.length, program.width, device=device)
        optimizer.zero_grad()
        total = torch.zeros((), device=device)
        for part in tokens.chunk(program.parts):
            loss = _loss(program, blocks, part, device) / program.parts
            loss.backward()
            total += loss.detach()
        optimizer.step()
        losses.append(total)
        if program.validates:
            seen = _loss(program, blocks, tokens[:1], device)
            history.append(seen if program.keeps_graphs else seen.detach())
    return {"losses": losses, "gradients": [each.grad for each in list(blocks.parameters())[:2]]}


def _blocks(program: Program) -> Any:
    from torch import nn

    width = program.width
    shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    layers = [nn.ModuleDict({name: nn.Linear(*shape) for name, shape in shapes.items()}) for _ in range(program.layers)]
    return nn.ModuleList(layers)


def _optimizer(program: Program, blocks: Any) -> Any:
    import torch

    if program.state == "momentum":
        return torch.optim.SGD(blocks.parameters(), lr=1e-3, momentum=0.9, foreach=False)
    return torch.optim.Adam(blocks.parameters(), lr=1e-3, foreach=False)


def _loss(program: Program, blocks: Any, tokens: Tensor, device: str) -> Tensor:
    import torch
    from torch.utils.checkpoint import checkpoint

    with torch.autocast(device, dtype=torch.bfloat16, enabled=program.half):
        for block in blocks:
            if program.recomputed:
                tokens = checkpoint(_layer, program, block, tokens, use_reentrant=False)
            else:
                tokens = _layer(program, block, tokens)
        return tokens.float().square().mean()


def _layer(program: Program, block: Any, tokens: Tensor) -> Tensor:
    import torch
    from torch.nn import functional

    batch, length, width = tokens.shape
    parts = block["qkv"](tokens).view(batch, length, 3, width // HEAD, HEAD).transpose(1, 3).unbind(2)
    if program.fused:
        mixed = functional.scaled_dot_product_attention(*parts)
    else:
        query, key, value = parts
        mixed = torch.softmax(query @ key.transpose(-2, -1) / HEAD**0.5, dim=-1) @ value
    tokens = tokens + block["out"](mixed.transpose(1, 2).reshape(batch, length, width))
    widened: Tensor = block["down"](functional.gelu(block["up"](tokens)))
    return tokens + widened
