"""A classifier on a folder of photographs, decoded and augmented item by item with PIL, like ImageFolder."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class Block(nn.Module):
    """A residual block."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of the shortcut and two convolutions."""
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


def small_resnet(classes: int) -> nn.Module:
    """A residual network with three blocks."""
    stem = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    blocks = [Block(16, 32, 2), Block(32, 64, 2), Block(64, 64, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def prepare(scale: float) -> Namespace:
    """JPEG files of camera size in a folder per class."""
    count = scaled(128, scale, 16)
    for label in ("cats", "dogs"):
        (Path("data/train") / label).mkdir(parents=True)
    for index in range(count):
        low = np.random.randint(0, 240, (48, 64, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(low).resize((1024, 768), Image.Resampling.BICUBIC))
        grain = np.random.randint(0, 16, smooth.shape, dtype=np.uint8)
        Image.fromarray(smooth // 17 * 16 + grain).save(
            f"data/train/{('cats', 'dogs')[index % 2]}/{index:05d}.jpg", quality=90
        )
    return {"small_resnet": small_resnet}


CELL = """
import os, random
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, DataLoader

class ImageFolder(Dataset):
    def __init__(self, root):
        self.classes = sorted(os.listdir(root))
        self.samples = [(os.path.join(root, c, f), i) for i, c in enumerate(self.classes)
                        for f in sorted(os.listdir(os.path.join(root, c)))]

    def __len__(self):
        return len(self.samples)

    def load(self, path):
        img = Image.open(path).convert('RGB')
        return img.resize((112, 112), Image.BILINEAR)

    def __getitem__(self, idx):
        path, target = self.samples[idx]
        img = self.load(path)
        left, top = random.randint(0, 16), random.randint(0, 16)
        img = img.crop((left, top, left + 96, top + 96))
        if random.random() < 0.5:
            img = img.transpose(Image.FLIP_LEFT_RIGHT)
        x = torch.from_numpy(np.array(img)).permute(2, 0, 1).float() / 255
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        return (x - mean.view(3, 1, 1)) / std.view(3, 1, 1), target

device = 'cuda' if torch.cuda.is_available() else 'cpu'
dataset = ImageFolder('data/train')
loader = DataLoader(dataset, batch_size=16, shuffle=True, num_workers=0, pin_memory=torch.cuda.is_available())
model = small_resnet(len(dataset.classes)).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(3):
    model.train()
    correct, total = 0, 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        outputs = model(images)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        correct += (outputs.argmax(1) == labels).sum().item()
        total += labels.size(0)
    print(f'epoch {epoch}: accuracy {correct / total:.3f}')
"""

CHANGES = (
    Change("two workers", "num_workers", edits={"num_workers=0": "num_workers=2"}),
    Change(
        "decode at the smaller size",
        "vectorize_items",
        edits={
            "img = Image.open(path).convert('RGB')": "img = Image.open(path)\n"
            "        img.draft('RGB', (112, 112))\n        img = img.convert('RGB')"
        },
    ),
    Change(
        "keep resized images",
        "cache_items",
        edits={
            "img = self.load(path)\n": "img = self.cache[path] if path in self.cache else "
            "self.cache.setdefault(path, self.load(path))\n",
            "    def __len__(self):": "        self.cache = {}\n\n    def __len__(self):",
        },
    ),
    Change(
        "channels last",
        "channels_last",
        edits={
            "len(dataset.classes)).to(device)": "len(dataset.classes)).to(device, memory_format=torch.channels_last)",
            "images.to(device),": "images.to(device, memory_format=torch.channels_last),",
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="total * 3", seconds=4)
