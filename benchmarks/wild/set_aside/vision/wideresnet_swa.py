"""A wide residual network on tensors in memory, large convolutions and stochastic weight averaging."""

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Images as normalized tensors."""
    count = scaled(1600, scale, 64)
    return {"train_x": torch.randn(count, 3, 32, 32), "train_y": torch.randint(0, 10, (count,))}


CELL = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

class BasicBlock(nn.Module):
    def __init__(self, in_planes, planes, stride):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_planes)
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(in_planes, planes, 1, stride=stride, bias=False) if in_planes != planes else None

    def forward(self, x):
        out = F.relu(self.bn1(x))
        skip = x if self.shortcut is None else self.shortcut(out)
        out = self.conv1(out)
        out = self.conv2(F.relu(self.bn2(out)))
        return out + skip

class WideResNet(nn.Module):
    def __init__(self, widen=2, num_classes=10):
        super().__init__()
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.layers = nn.Sequential(*[BasicBlock(widths[i], widths[i + 1], 1 if i == 0 else 2) for i in range(3)])
        self.bn, self.fc = nn.BatchNorm2d(widths[3]), nn.Linear(widths[3], num_classes)

    def forward(self, x):
        x = F.relu(self.bn(self.layers(self.stem(x))))
        return self.fc(x.mean((2, 3)))

epochs, swa_start, batch_size = 2, 1, 64
loader = DataLoader(TensorDataset(train_x, train_y), batch_size=batch_size, shuffle=True)
model = WideResNet()
swa_model = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
swa_scheduler = SWALR(optimizer, swa_lr=0.05)

trained_on = 0
for epoch in range(epochs):
    epoch_loss = 0.0
    for x, y in loader:
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch_loss += loss.detach() * len(x)
        trained_on += len(x)
    if epoch >= swa_start:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()
    print(epoch, (epoch_loss / len(train_x)).item())
update_bn(loader, swa_model)
"""

CHANGES = (
    Change(
        "channels last",
        "channels_last",
        edits={
            "model = WideResNet()": "model = WideResNet().to(memory_format=torch.channels_last)",
            "        loss = F.cross_entropy(model(x), y,": "        x = x.contiguous(memory_format=torch.channels_last)\n        loss = F.cross_entropy(model(x), y,",
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        loss = F.cross_entropy(model(x), y,": "        with torch.autocast('cpu', dtype=torch.bfloat16):\n            logits = model(x)\n"
            "        loss = F.cross_entropy(logits.float(), y,"
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("fused SGD", "fused_optimizer", edits={"weight_decay=5e-4)": "weight_decay=5e-4, fused=True)"}),
    Change(
        "batches of 128",
        "larger_batch",
        edits={"swa_start, batch_size = 2, 1, 64": "swa_start, batch_size = 2, 1, 128"},
    ),
    Change(
        "one thread",
        "threads",
        edits={"epochs, swa_start, batch_size =": "torch.set_num_threads(1)\nepochs, swa_start, batch_size ="},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="trained_on", seconds=5)
