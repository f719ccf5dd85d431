"""Programs that run out of memory, each for a different reason, and fixes in the order of their cost.

All are the same small transformer; they differ in their sizes and in the fixes applied. They are CUDA code, for a real
or a virtual GPU; they also run on the CPU, where their results can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from gpulab.hardware.lookup import resolve
from gpulab.run import Run
from gpulab.virtual.memory_fit.memory_peaks import non_torch_memory
from gpulab.virtual.session import VirtualGpu

if TYPE_CHECKING:
    from torch import Tensor

CARD = "l4"  # a GPU with 22 GiB: small enough to fill, and it has bfloat16
HEAD_SIZE = 64  # size of one attention head
FLOAT32_BYTES = 4  # of a float32


@dataclass(frozen=True, kw_only=True)
class TrainingProgram:
    """One training run: its sizes, and how it uses memory."""

    width: int = 1024
    layers: int = 4
    batch: int = 8
    length: int = 512
    steps: int = 2
    bfloat16: bool = False  # autocast to bfloat16
    fused: bool = True  # scaled_dot_product_attention; else attention written out
    micro_batches: int = 1  # micro-batches per batch (gradient accumulation)
    checkpointing: bool = False  # activation checkpointing of each layer
    optimizer: str = "adam"  # optimizer state: "adam" has two numbers per weight, "momentum" one
    validates: bool = False  # store a validation loss after each step
    keeps_graph: bool = True  # store it with its graph; else detached


# In the order of their cost; each returns a program that needs less memory.
OOM_FIXES: Mapping[str, Callable[[TrainingProgram], TrainingProgram]] = {
    "detach": lambda program: replace(program, keeps_graph=program.keeps_graph and not program.validates),
    "fused": lambda program: replace(program, fused=True),
    "half": lambda program: replace(program, bfloat16=True),
    "parts": lambda program: replace(program, micro_batches=min(4, program.batch)),
    "recompute": lambda program: replace(program, checkpointing=True),
    "state": lambda program: replace(program, optimizer="momentum"),
}


# Five programs that run out of memory on CARD, each for a different reason.
OOM_PROGRAMS: Mapping[str, TrainingProgram] = {
    "wide": TrainingProgram(width=5632, layers=4, batch=1, length=256),
    "many": TrainingProgram(layers=2, batch=192, length=1024),
    "long": TrainingProgram(layers=1, batch=1, length=16384, fused=False),
    "more": TrainingProgram(layers=2, batch=320, length=1024, bfloat16=True),
    "later": TrainingProgram(layers=1, batch=4, length=12288, steps=32, validates=True),
}
# Two reasons at once: the exercise is to make it fit with as few fixes as possible.
TWO_CAUSES = TrainingProgram(width=5632, layers=4, batch=4, length=2048)


def apply_fixes(program: TrainingProgram, names: Sequence[str]) -> TrainingProgram:
    """Return the program with these fixes applied."""
    for name in names:
        program = OOM_FIXES[name](program)
    return program


def shrink_program(program: TrainingProgram) -> TrainingProgram:
    """Return the same program in a size that a CPU trains in a second, to compare results."""
    return replace(program, width=HEAD_SIZE, layers=1, batch=min(program.batch, 4), length=16, steps=2)


def runs_on_card(program: TrainingProgram, name: str = "attempt", card: str = CARD) -> bool:
    """Run the program on a virtual GPU and return whether it fits; gpulab.runs[name] is the recording in both cases."""
    import torch

    try:
        with VirtualGpu(card, name):
            train_program(program)
    except torch.OutOfMemoryError:
        return False
    return True


def growth_per_step_bytes(run: Run, skip: int = 3) -> int:
    """Return the growth of allocated memory per step, without the first `skip` steps; 0 if there are too few steps.

    Differences are over two steps: a block that is used in every second step would otherwise look like growth.
    """
    used = run.allocator_rows["allocated_bytes"].tolist()[skip:]  # at the start of the recording and of each step
    growth = [(next_bytes - previous_bytes) / 2 for previous_bytes, next_bytes in zip(used, used[2:], strict=False)]
    return round(median(growth)) if growth else 0


def model_state_bytes(program: TrainingProgram) -> int:
    """Return the bytes that do not depend on the batch: weights, gradients and optimizer state."""
    import torch

    with torch.device("meta"):  # shapes without memory
        weights = sum(int(each.numel()) for each in _blocks(program).parameters())
    return weights * FLOAT32_BYTES * (3 if program.optimizer == "momentum" else 4)


def card_capacity_bytes(card: str = CARD) -> int:
    """Return the memory of a virtual GPU that is available for tensors, in bytes."""
    spec = resolve(card)
    return spec.usable_bytes - sum(each.bytes for each in non_torch_memory(spec))


def train_program(program: TrainingProgram, device: str = "cuda", seed: int = 0) -> dict[str, list[Tensor]]:
    """Train the program; return the loss of each step, and the final gradients of the first weights."""
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
        for part in tokens.chunk(program.micro_batches):
            loss = _loss(program, blocks, part, device) / program.micro_batches
            loss.backward()
            total += loss.detach()
        optimizer.step()
        losses.append(total)
        if program.validates:
            validation_loss = _loss(program, blocks, tokens[:1], device)
            history.append(validation_loss if program.keeps_graph else validation_loss.detach())
    return {"losses": losses, "gradients": [each.grad for each in list(blocks.parameters())[:2]]}


def _blocks(program: TrainingProgram) -> Any:
    from torch import nn

    width = program.width
    shapes = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    layers = [nn.ModuleDict({name: nn.Linear(*shape) for name, shape in shapes.items()}) for _ in range(program.layers)]
    return nn.ModuleList(layers)


def _optimizer(program: TrainingProgram, blocks: Any) -> Any:
    import torch

    if program.optimizer == "momentum":
        return torch.optim.SGD(blocks.parameters(), lr=1e-3, momentum=0.9, foreach=False)
    return torch.optim.Adam(blocks.parameters(), lr=1e-3, foreach=False)


def _loss(program: TrainingProgram, blocks: Any, tokens: Tensor, device: str) -> Tensor:
    import torch
    from torch.utils.checkpoint import checkpoint

    with torch.autocast(device, dtype=torch.bfloat16, enabled=program.bfloat16):
        for block in blocks:
            if program.checkpointing:
                tokens = checkpoint(_layer, program, block, tokens, use_reentrant=False)
            else:
                tokens = _layer(program, block, tokens)
        return tokens.float().square().mean()


def _layer(program: TrainingProgram, block: Any, tokens: Tensor) -> Tensor:
    import torch
    from torch.nn import functional

    batch, length, width = tokens.shape
    parts = block["qkv"](tokens).view(batch, length, 3, width // HEAD_SIZE, HEAD_SIZE).transpose(1, 3).unbind(2)
    if program.fused:
        attended = functional.scaled_dot_product_attention(*parts)
    else:
        query, key, value = parts
        attended = torch.softmax(query @ key.transpose(-2, -1) / HEAD_SIZE**0.5, dim=-1) @ value
    tokens = tokens + block["out"](attended.transpose(1, 2).reshape(batch, length, width))
    hidden: Tensor = block["down"](functional.gelu(block["up"](tokens)))
    return tokens + hidden
