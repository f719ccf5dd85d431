"""The networks of an architecture search: their error after a short training, their latency and memory on a GPU."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal

from gpulab.errors import GpulabError
from gpulab.lessons.labs.steps.large_batches import PATTERNS, PatternImages, correct_frac, shuffled_batches
from gpulab.lessons.labs.steps.throughput import step_throughput

if TYPE_CHECKING:
    from torch import Tensor

    from gpulab.lessons.lesson_lab import Lab

Kind = Literal["full", "depthwise"]
BATCH = 64
IMAGES_PER_CALL = 65_536  # of 8 x 8 pixels, for latency and memory
STEPS = 4


def load_optuna() -> Any:
    """Return the module optuna, which logs warnings only. Raises GpulabError if it is not installed."""
    try:
        optuna = importlib.import_module("optuna")
    except ImportError as missing:
        raise GpulabError(
            "This experiment needs Optuna.",
            why="it is not installed here",
            fix='pip install optuna (pip install "gpulab[lab]" installs it with all that the notebooks need); then '
            "restart the kernel. The other experiments of this notebook do not need it",
        ) from missing
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def candidate_network(kind: Kind, channels: int, blocks: int) -> Any:
    """Build a classifier of images of 1 x 8 x 8 pixels, from residual blocks of this kind."""
    import torch
    from torch import nn
    from torch.nn import functional

    def convolution() -> Any:
        if kind == "full":
            return nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        return nn.Sequential(depthwise, nn.Conv2d(channels, channels, 1, bias=False))

    class CandidateBlock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.norm = convolution(), nn.BatchNorm2d(channels)

        def forward(self, x: Tensor) -> Tensor:
            return x + functional.relu(self.norm(self.convolution(x)))

    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(1, channels, 3, stride=2, padding=1), nn.ReLU())
    stack = [CandidateBlock() for _ in range(blocks)]
    return nn.Sequential(stem, *stack, nn.Flatten(), nn.Linear(16 * channels, PATTERNS))


def as_images(rows: Tensor) -> Tensor:
    """Return rows of 64 pixels as images of 1 x 8 x 8."""
    return rows.view(-1, 1, 8, 8)


def trained_error(network: Any, data: PatternImages, lr: float, epochs: int = 2, seed: int = 0) -> float:
    """Train with AdamW, and return the share of wrong answers on the first half of the test images (validation)."""
    import torch
    from torch.nn import functional

    optimizer = torch.optim.AdamW(network.parameters(), lr=lr)
    images = as_images(data.inputs)
    for indices in shuffled_batches(len(images), BATCH, epochs, seed):
        optimizer.zero_grad()
        functional.cross_entropy(network(images[indices]), data.labels[indices]).backward()
        optimizer.step()
    half = len(data.test_inputs) // 2
    return 1 - correct_frac(network, as_images(data.test_inputs[:half]), data.test_labels[:half])


def fresh_error(network: Any, data: PatternImages) -> float:
    """Return the share of wrong answers on the second half of the test images, which no search has used."""
    half = len(data.test_inputs) // 2
    return 1 - correct_frac(network, as_images(data.test_inputs[half:]), data.test_labels[half:])


def inference_cost(lab: Lab, name: str, network: Any) -> tuple[float, float]:
    """Record inference of 65,536 images in bfloat16; return the kernel time in us and the peak of the memory in MiB.

    Kernel time, because the time between kernels depends on the host and its load. Without a CUDA GPU, a virtual one is
    used.
    """
    from gpulab.capture.run_registry import runs

    with lab.gpu(name):
        peak_bytes = _answer_images(network)
    return round(step_throughput(runs[name]).kernel_ns / 1000, 1), peak_bytes / 2**20


def _answer_images(network: Any) -> int:
    """Classify a batch several times on the GPU, and return the peak of the memory in bytes."""
    import copy

    import torch

    from gpulab.capture.active_session import step

    options: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16, "memory_format": torch.channels_last}
    model = copy.deepcopy(network).eval().to(**options)
    images = torch.zeros(IMAGES_PER_CALL, 1, 8, 8, device="cuda", dtype=torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        for _ in range(STEPS):
            model(images)
            torch.cuda.synchronize()  # so that the kernels of a step run within it
            step()
    return int(torch.cuda.max_memory_allocated())
