"""Training with a test function that forgets no_grad, runs every epoch and fills a confusion matrix in Python."""

import torch
from torch import nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def gesture_net() -> nn.Module:
    """One-dimensional convolutions over sensor channels."""
    return nn.Sequential(
        nn.Conv1d(9, 64, 5, padding=2),
        nn.ReLU(),
        nn.Conv1d(64, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(64, 64, 5, padding=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(64, 6),
    )


def prepare(scale: float) -> Namespace:
    """Sensor recordings of 128 samples, as in the activity data set of UCI; the test set is the larger one."""
    train, test = scaled(640, scale, 32), scaled(1920, scale, 32)
    return {
        "X_train": torch.randn(train, 9, 128),
        "y_train": torch.randint(0, 6, (train,)),
        "X_test": torch.randn(test, 9, 128),
        "y_test": torch.randint(0, 6, (test,)),
        "model": gesture_net(),
    }


CELL = """
import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

train_loader = DataLoader(TensorDataset(X_train, y_train), batch_size=32, shuffle=True)
test_loader = DataLoader(TensorDataset(X_test, y_test), batch_size=32)
criterion = nn.CrossEntropyLoss()
optimizer = optim.Adam(model.parameters(), lr=1e-3)
trained = 0

def train():
    global trained
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        trained += len(y)
    return loss

def test():
    model.eval()
    test_loss, matrix = 0, np.zeros((6, 6), dtype=int)
    for x, y in test_loader:
        output = model(x)
        test_loss += criterion(output, y)
        pred = output.argmax(dim=1)
        for t, p in zip(y, pred):
            matrix[t.item(), p.item()] += 1
    print(f'Test loss: {test_loss.item() / len(test_loader):.4f}, accuracy: {matrix.trace() / matrix.sum():.3f}')

epochs = 6
for epoch in range(epochs):
    loss = train()
    if epoch % 1 == 0:
        test()
"""

CHANGES = (
    Change("no graph in the test", "no_grad", edits={"def test():": "@torch.no_grad()\ndef test():"}),
    Change("test every third epoch", "eval_less_often", edits={"if epoch % 1 == 0": "if epoch % 3 == 2"}),
    Change(
        "confusion matrix by bincount",
        "remove_python",
        edits={
            "        for t, p in zip(y, pred):\n            matrix[t.item(), p.item()] += 1\n": ""
            "        matrix += torch.bincount(y * 6 + pred, minlength=36).view(6, 6).numpy()\n"
        },
    ),
    Change(
        "two workers",
        "num_workers",
        edits={
            "batch_size=32, shuffle=True)": "batch_size=32, shuffle=True, num_workers=2)",
            "TensorDataset(X_test, y_test), batch_size=32)": "TensorDataset(X_test, y_test), batch_size=32, num_workers=2)",
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="trained", seconds=6)
