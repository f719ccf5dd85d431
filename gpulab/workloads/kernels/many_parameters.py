"""A model with many small parameter tensors, updated one by one or all at once."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from gpulab.workloads.training import deep_narrow_model, loss_values, random_normal, run_optimizer_steps, torch_threads
from gpulab.workloads.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor

WIDTH, DEPTH, BATCH = 512, 20, 16
SHARE = 0.05  # weight of a layer in the residual sum: many layers without shortcuts amplify rounding errors


def train_many_parameters(*, device: str = "cpu", steps: int = 60, fused: bool = False) -> list[float]:
    """Train a deep model of 82 parameter tensors with AdamW, as a loop over them or fused."""
    import torch
    from torch import nn

    samples = random_normal(BATCH, WIDTH).to(device)
    with torch_threads(1):
        model = deep_narrow_model(WIDTH, DEPTH).to(device)
        *layers, last = model.children()
        # foreach=False: on a GPU, PyTorch uses foreach by default; on a CPU it does not.
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused, foreach=False)

        def loss_of(_: int) -> Tensor:
            state = samples
            for linear, norm, activation in zip(layers[::3], layers[1::3], layers[2::3], strict=True):
                state = state + SHARE * activation(norm(linear(state)))
            return nn.functional.mse_loss(last(state), samples.mean(1, keepdim=True))

        return loss_values(run_optimizer_steps(optimizer, loss_of, range(steps)))


PARAMETERS = (
    Workload(
        name="parameters",
        about="AdamW updates 82 parameter tensors one after another, with a dozen operators for each.",
        run=train_many_parameters,
        rule="unfused_optimizer",
        twin="parameters_fused",
    ),
    Workload(
        name="parameters_fused",
        about="The same with fused=True: one operator updates them all.",
        run=functools.partial(train_many_parameters, steps=120, fused=True),
        rule=None,
    ),
)
