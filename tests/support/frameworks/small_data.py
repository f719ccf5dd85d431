"""A classification with a tiny network: the same numbers each time."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES, CLASSES, BATCH_SIZE = 8, 3, 4
TRAINING_BATCHES, VALIDATION_BATCHES = 12, 5


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def dataset(batches, seed):
    random = torch.Generator().manual_seed(seed)
    count = batches * BATCH_SIZE
    inputs = torch.randn(count, FEATURES, generator=random)
    return TensorDataset(inputs, torch.randint(CLASSES, (count,), generator=random))


def training_loader():
    return DataLoader(dataset(TRAINING_BATCHES, 1), batch_size=BATCH_SIZE)


def validation_loader():
    return DataLoader(dataset(VALIDATION_BATCHES, 2), batch_size=BATCH_SIZE)


def work_by_phase(run):
    """Batches and updates of each phase, by its name, from the phases that the report shows."""
    from gpulab.analysis.steps.phases import find_phases

    return {phase.name: (phase.batches, phase.updates) for phase in find_phases(run) if phase.name}
