"""Street scenes with coloured PNG masks decoded class by class, IoU every step; the manner of segmentation repositories."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

PALETTE = [(37 * k % 256, 91 * k % 256, 53 * k % 256) for k in range(20)]


class SegNet(nn.Module):
    """An encoder and decoder with one skip connection."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.down2 = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU())
        self.middle = nn.Sequential(nn.Conv2d(32, 32, 3, 1, 1), nn.BatchNorm2d(32), nn.ReLU())
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.head = nn.ConvTranspose2d(32, classes, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Scores per pixel."""
        skip = self.down1(x)
        x = self.up(self.middle(self.down2(skip)))
        scores: Tensor = self.head(torch.cat([x, skip], 1))
        return scores


def prepare(scale: float) -> Namespace:
    """Images as JPEG, masks as RGB PNG with a colour per class."""
    count = scaled(48, scale, 4)
    Path("data/images").mkdir(parents=True)
    Path("data/masks").mkdir()
    colours = np.array(PALETTE, dtype=np.uint8)
    for index in range(count):
        classes = np.random.randint(0, 20, (8, 12)).repeat(24, 0).repeat(24, 1)
        mask = colours[classes]
        noise = np.random.randint(0, 40, mask.shape)
        Image.fromarray((mask // 2 + noise).astype(np.uint8)).save(f"data/images/{index:04d}.jpg")
        Image.fromarray(mask).save(f"data/masks/{index:04d}.png")
    return {"PALETTE": PALETTE, "SegNet": SegNet}


CELL = """
import glob
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, DataLoader

NUM_CLASSES = len(PALETTE)

def mask_to_class(mask):
    target = np.zeros(mask.shape[:2], dtype=np.int64)
    for k, colour in enumerate(PALETTE):
        target[np.all(mask == np.array(colour), axis=-1)] = k
    return target

class CityDataset(Dataset):
    def __init__(self, root):
        self.images = sorted(glob.glob(root + '/images/*.jpg'))
        self.masks = sorted(glob.glob(root + '/masks/*.png'))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = np.asarray(Image.open(self.images[i]).convert('RGB'), dtype=np.float32) / 255.0
        mask = mask_to_class(np.asarray(Image.open(self.masks[i]).convert('RGB')))
        return torch.from_numpy(image.transpose(2, 0, 1)), torch.from_numpy(mask)

def mean_iou(pred, target):
    ious = []
    for cls in range(NUM_CLASSES):
        inter = ((pred == cls) & (target == cls)).sum().item()
        union = ((pred == cls) | (target == cls)).sum().item()
        if union > 0:
            ious.append(inter / union)
    return np.mean(ious)

train_loader = DataLoader(CityDataset('data'), batch_size=4, shuffle=True, num_workers=0)
model = SegNet(NUM_CLASSES)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)

seen = 0
for epoch in range(2):
    for step, (image, mask) in enumerate(train_loader):
        optimizer.zero_grad()
        logits = model(image)
        loss = criterion(logits, mask)
        loss.backward()
        optimizer.step()
        seen += image.size(0)
        if step % 1 == 0:
            miou = mean_iou(logits.argmax(1), mask)
            print(f'Epoch {epoch} step {step} loss {loss.item():.4f} mIoU {miou:.4f}')
"""

TABLE = """
    code = (mask.astype(np.int64) * np.array([65536, 256, 1])).sum(-1)
    keys = np.array([r * 65536 + g * 256 + b for r, g, b in PALETTE])
    order = np.argsort(keys)
    return order[np.searchsorted(keys[order], code)]
"""

CHANGES = (
    Change(
        "look colours up in a table",
        "vectorize_items",
        edits={
            """
    target = np.zeros(mask.shape[:2], dtype=np.int64)
    for k, colour in enumerate(PALETTE):
        target[np.all(mask == np.array(colour), axis=-1)] = k
    return target
""": TABLE
        },
    ),
    Change("two workers", "num_workers", edits={"num_workers=0": "num_workers=2"}),
    Change("IoU every tenth step", "fewer_logs", edits={"if step % 1 == 0": "if step % 10 == 0"}),
    Change(
        "bf16 autocast",
        "precision",
        edits={
            "        logits = model(image)\n        loss = criterion(logits, mask)\n": "        "
            "with torch.autocast('cpu', dtype=torch.bfloat16):\n            logits = model(image)\n"
            "        loss = criterion(logits.float(), mask)\n"
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"weight_decay=1e-4)": "weight_decay=1e-4, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", seconds=6)
