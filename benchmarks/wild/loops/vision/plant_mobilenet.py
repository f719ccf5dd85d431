"""A MobileNet-like network for leaf photos that are already decoded, in float32 and with an ordinary epoch loop."""

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Small normalized photos in memory."""
    count = scaled(1536, scale, 32)
    labels = torch.randint(0, 12, (count,))
    photos = torch.randn(count, 3, 64, 64) + labels.view(-1, 1, 1, 1) / 12
    return {"train_x": photos, "train_y": labels}


CELL = """
import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import TensorDataset, DataLoader

class InvertedResidual(nn.Module):
    def __init__(self, inp, oup, stride, expand):
        super().__init__()
        hidden = inp * expand
        self.use_res = stride == 1 and inp == oup
        self.conv = nn.Sequential(
            nn.Conv2d(inp, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden), nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, oup, 1, bias=False), nn.BatchNorm2d(oup))

    def forward(self, x):
        return x + self.conv(x) if self.use_res else self.conv(x)

class LeafNet(nn.Module):
    def __init__(self, n_class=12):
        super().__init__()
        layers, inp = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6(inplace=True)], 16
        for t, c, n, s in [(2, 24, 2, 2), (4, 48, 2, 2), (4, 96, 3, 2)]:
            for i in range(n):
                layers.append(InvertedResidual(inp, c, s if i == 0 else 1, t))
                inp = c
        layers += [nn.Conv2d(inp, 512, 1, bias=False), nn.BatchNorm2d(512), nn.ReLU6(inplace=True)]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(512, n_class))

    def forward(self, x):
        return self.classifier(self.features(x).mean([2, 3]))

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
train_loader = DataLoader(TensorDataset(train_x, train_y), batch_size=32, shuffle=True)
model = LeafNet().to(device)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=4e-5)
scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)

n_images = 0
for epoch in range(2):
    model.train()
    running_loss, running_corrects = 0.0, 0
    for inputs, labels in train_loader:
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        outputs = model(inputs)
        _, preds = torch.max(outputs, 1)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item() * inputs.size(0)
        running_corrects += torch.sum(preds == labels.data)
        n_images += inputs.size(0)
    scheduler.step()
    print('Epoch {} Loss: {:.4f} Acc: {:.4f}'.format(
        epoch, running_loss / len(train_x), running_corrects.double() / len(train_x)))
"""

CHANGES = (
    Change(
        "bfloat16",
        "precision",
        edits={
            "        outputs = model(inputs)\n": "        with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "            outputs = model(inputs)\n        outputs = outputs.float()\n"
        },
    ),
    Change(
        "channels last",
        "channels_last",
        edits={
            "model = LeafNet().to(device)": "model = LeafNet().to(device, memory_format=torch.channels_last)",
            "inputs, labels = inputs.to(device), labels.to(device)": "inputs = inputs.to(device, "
            "memory_format=torch.channels_last)\n        labels = labels.to(device)",
        },
    ),
    Change("fused SGD", "fused_optimizer", edits={"nesterov=True,": "nesterov=True, fused=True,"}),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("batches of 64", "larger_batch", edits={"batch_size=32": "batch_size=64"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_images", seconds=6)
