"""Run the loop of the out-of-memory drills again on a virtual T4, with a smaller batch: does it fit?"""

from __future__ import annotations

from collections.abc import Sequence

from gpulab.virtual.session import VirtualGpu

GPU, WIDTH, LAYERS = "t4", 2048, 8
LARGE, SMALL = 512, 16  # thousand samples: of memory1 and the last step of memory3; of the first steps of memory3


def fits(batches: Sequence[int]) -> bool:
    """Return whether a step with each of these batches, in thousands of samples, fits on a virtual T4.

    The loop is that of memory1 and memory3: eight linear layers of 2,048 units, trained with Adam. Memory is counted
    exactly, by PyTorch's own allocation requests; times play no part.
    """
    import torch

    gpu = VirtualGpu(GPU, "smaller batch")
    try:
        with gpu:
            _train(batches)
    except torch.cuda.OutOfMemoryError:
        return False
    return True


def _train(batches: Sequence[int]) -> None:
    import torch
    from torch import nn

    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    for batch in batches:
        samples = torch.randn(1024 * batch, WIDTH, device="cuda")
        optimizer.zero_grad()
        model(samples).square().mean().backward()
        optimizer.step()
