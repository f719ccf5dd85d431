"""A compiled model with a new sequence length in each step: recompiled for each, or compiled once for all."""

from __future__ import annotations

import functools

from gpulab.workloads.training import loss_values, perceptron, run_optimizer_steps, torch_threads
from gpulab.workloads.workload import Workload

WIDTH, BATCH, SHORTEST = 64, 16, 40


def train_on_lengths(*, device: str = "cpu", steps: int = 40, dynamic: bool = False) -> list[float]:
    """Train a compiled perceptron on sequences; each batch is a little longer than the previous one."""
    import torch
    from torch import nn

    model = perceptron(WIDTH, 2 * WIDTH, WIDTH).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(0)
    batches = (torch.randn(BATCH, SHORTEST + step, WIDTH, generator=generator).to(device) for step in range(steps))
    # Raise the limit of eight recompilations, as is often advised: it hides the warning, not the cost.
    with torch._dynamo.config.patch(recompile_limit=1000), torch_threads(1):
        # backend="eager" needs no C++ compiler, and recompiles just as often.
        compiled = torch.compile(model, backend="eager", dynamic=dynamic)
        return loss_values(
            run_optimizer_steps(optimizer, lambda batch: nn.functional.mse_loss(compiled(batch), batch), batches)
        )


LENGTHS = (
    Workload(
        name="lengths",
        about="A compiled model with a new sequence length in every step, recompiled for each.",
        run=train_on_lengths,
        rule="recompilation",
        twin="lengths_dynamic",
    ),
    Workload(
        name="lengths_dynamic",
        about="The same model, compiled once for all lengths.",
        run=functools.partial(train_on_lengths, steps=150, dynamic=True),
        rule=None,
    ),
)
