"""Planted causes in data loading and batch size."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.gpu_visit.planted_loops.settings import LoopSettings, PlantedLoop

LARGER = 8  # times as many sequences in a batch


class Spectra(Dataset[Any]):
    """Signals, each turned into a spectrum by NumPy when it is needed: some milliseconds of one core."""

    def __init__(self, length: int, rounds: int) -> None:
        self.length, self.rounds = length, rounds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        signal = np.random.default_rng(index).normal(size=4096)
        for _ in range(self.rounds):
            signal = np.abs(np.fft.fft(signal * np.hanning(4096)))
            signal = signal / signal.max()
        return torch.from_numpy(signal[:1024].astype(np.float32)), index % 10


def train_on_spectra(settings: LoopSettings) -> None:
    """Items that cost milliseconds, loaded in the main process or by workers."""
    batch = settings.size(64, 2)
    dataset = Spectra(batch * settings.steps, settings.size(12, 1))
    workers = min(settings.size(8, 1), os.cpu_count() or 1) if settings.fixed else 0
    loader = DataLoader(dataset, batch_size=batch, num_workers=workers, pin_memory=settings.device == "cuda")
    model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 10)).to(settings.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for spectra, labels in loader:
        optimizer.zero_grad()
        outputs = model(spectra.to(settings.device, non_blocking=True))
        nn.functional.cross_entropy(outputs, labels.to(settings.device, non_blocking=True)).backward()
        optimizer.step()
        settings.step_done()


def train_few_sequences(settings: LoopSettings) -> None:
    """An LSTM that is given few sequences, or many."""
    width, length = settings.size(1024, 16), settings.size(256, 4)
    batch = settings.size(8, 1) * (LARGER if settings.fixed else 1)
    model = nn.LSTM(width, width, num_layers=2, batch_first=True).to(settings.device, settings.dtype)
    sequences = torch.randn(batch, length, width, device=settings.device, dtype=settings.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(settings.steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(sequences)[0], sequences).backward()
        optimizer.step()
        settings.step_done()


DATA = (
    PlantedLoop(
        name="no_workers",
        about="items that cost milliseconds of NumPy, num_workers=0",
        fix="num_workers=8",
        rules=("no_workers",),
        run=train_on_spectra,
    ),
    PlantedLoop(
        name="small_batch",
        about="an LSTM on 8 sequences",
        fix="64 sequences",
        rules=("small_batch", "dispatch_bound"),  # both advise a larger batch
        run=train_few_sequences,
        work=LARGER,
    ),
)
