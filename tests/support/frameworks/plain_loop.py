"""A loop of the user's with Accelerate: an epoch, its validation, and a checkpoint if there is a folder for it."""

from __future__ import annotations

import torch
from torch import nn

import gpulab
from tests.support.frameworks.small_data import network, training_loader, validation_loader


def train(accelerator, folder=None, fails_at=None):
    """The loss of each step, and the model."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, training, validation = accelerator.prepare(
        model, optimizer, training_loader(), validation_loader()
    )
    losses = []
    for inputs, labels in training:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == fails_at:
            raise ArithmeticError("the training failed")
    with gpulab.phase("validation"), torch.no_grad():
        for inputs, labels in validation:
            nn.functional.cross_entropy(model(inputs), labels)
    if folder is not None:
        accelerator.save_state(str(folder))
    return losses, model
