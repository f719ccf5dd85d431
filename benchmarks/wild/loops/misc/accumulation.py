"""Gradient accumulation by hand with micro-batches of two, as people do after an out-of-memory error on another machine."""

import torch
from torch import Tensor, nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class Classifier(nn.Module):
    """A transformer encoder over patches."""

    def __init__(self, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        layer = nn.TransformerEncoderLayer(width, 4, 256, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 20)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        scores: Tensor = self.head(self.encoder(self.patch(x).flatten(2).transpose(1, 2)).mean(1))
        return scores


def prepare(scale: float) -> Namespace:
    """Images of 40 by 40 pixels in memory."""
    count = scaled(1600, scale, 32)
    data = torch.utils.data.TensorDataset(torch.randn(count, 3, 40, 40), torch.randint(0, 20, (count,)))
    return {"train_data": data, "Classifier": Classifier}


CELL = """
import torch
from torch import nn
from torch.utils.data import DataLoader

batch_size = 2
accum_iter = 16

data_loader = DataLoader(train_data, batch_size=batch_size, shuffle=True)
model = Classifier()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)

n, running = 0, 0.0
for epoch in range(1):
    for batch_idx, (inputs, labels) in enumerate(data_loader):
        with torch.set_grad_enabled(True):
            preds = model(inputs)
            loss = criterion(preds, labels)
            loss = loss / accum_iter
            loss.backward()
            running += loss.item()
            if ((batch_idx + 1) % accum_iter == 0) or (batch_idx + 1 == len(data_loader)):
                optimizer.step()
                optimizer.zero_grad()
                print(f'epoch {epoch} batch {batch_idx + 1} loss {running:.4f}')
                running = 0.0
        n += len(labels)
"""

CHANGES = (
    Change(
        "micro-batches of sixteen",
        "larger_batch",
        edits={"batch_size = 2\naccum_iter = 16": "batch_size = 16\naccum_iter = 2"},
    ),
    Change(
        "bf16 autocast",
        "precision",
        edits={
            "            preds = model(inputs)\n": "            with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "                preds = model(inputs)\n"
        },
    ),
    Change("fused AdamW", "fused_optimizer", edits={"weight_decay=0.05)": "weight_decay=0.05, fused=True)"}),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change(
        "gradients kept as zeros",
        "zero_grad",
        edits={"optimizer.zero_grad()": "optimizer.zero_grad(set_to_none=False)"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n", seconds=5)
