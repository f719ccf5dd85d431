"""Telephone audio decoded inside the training loop: sample by sample in Python, or with a lookup table."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpulab.workloads.training import audio_classifier, batch_loader, loss_values, run_optimizer_steps, torch_threads
from gpulab.workloads.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor

SAMPLES = 4000  # half a second at 8 kHz
BATCH = 32


def preprocess(codes: NDArray[np.uint8]) -> Tensor:
    """Decode a batch of mu-law bytes one by one in Python."""
    import torch

    return torch.tensor([[decode_mu_law(code) for code in clip] for clip in codes.tolist()]).unsqueeze(1)


def preprocess_by_table(codes: NDArray[np.uint8]) -> Tensor:
    """Decode a batch of mu-law bytes with a table: a byte has 256 values, so each is decoded only once."""
    import torch

    return torch.from_numpy(_table()[codes]).unsqueeze(1)


def decode_mu_law(code: int) -> float:
    """Decode one sample of G.711 mu-law to -1..1."""
    flipped = ~code & 255
    magnitude = (((flipped & 15) * 8 + 132) << (flipped >> 4 & 7)) - 132
    return (-magnitude if flipped & 128 else magnitude) / 32768


@functools.lru_cache(maxsize=1)
def _table() -> NDArray[np.float32]:
    return np.array([decode_mu_law(code) for code in range(256)], np.float32)


def clips(count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return clips as mu-law bytes, each with the class of its pitch; the same every time."""
    random_state = np.random.default_rng(0)
    labels = np.arange(count) % 10
    time = np.arange(SAMPLES) / 8000
    audio = np.sin(2 * np.pi * 100 * (labels[:, None] + 1) * time) * 0.5 + random_state.normal(0, 0.1, (count, SAMPLES))
    levels = np.array([decode_mu_law(code) for code in range(256)])
    order = np.argsort(levels, kind="stable")
    return order[np.searchsorted(levels[order][1:-1], audio)].astype(np.uint8), labels


def train_on_audio(*, device: str = "cpu", steps: int = 60, by_table: bool = False) -> list[float]:
    """Train a small classifier on audio that the loop itself decodes."""
    with torch_threads(1 if device == "cpu" else None):  # more threads do not speed up a model this small
        return _train(device, steps, by_table)


def _train(device: str, steps: int, by_table: bool) -> list[float]:
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    loader = batch_loader(TensorDataset(*(torch.from_numpy(array) for array in clips(steps * BATCH))), BATCH, device)
    model = audio_classifier(16 if device == "cpu" else 512).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    prepare = preprocess_by_table if by_table else preprocess
    batches = ((prepare(codes.numpy()), classes) for codes, classes in loader)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        audio, classes = batch
        return nn.functional.cross_entropy(model(audio.to(device)), classes.to(device))

    return loss_values(run_optimizer_steps(optimizer, loss_of, batches))


AUDIO = (
    Workload(
        name="audio_python",
        about="Audio decoded sample by sample in the training loop's own Python code, while the model waits.",
        run=train_on_audio,
        rule="host_python",
        twin="audio_table",
    ),
    Workload(
        name="audio_table",
        about="The same audio, decoded with a table of 256 values.",
        run=functools.partial(train_on_audio, steps=150, by_table=True),
        rule=None,
    ),
)
