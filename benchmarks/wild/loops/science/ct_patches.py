"""Segmentation of a lesion by patches of CT volumes, read from compressed .npz files and normalized for every patch."""

from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Volumes in Hounsfield units with a smooth background, a bright ellipsoid, and its mask."""
    rng = np.random.default_rng(0)
    folder = Path("Task03_small")
    folder.mkdir()
    shape = np.array([80, 128, 128])
    grid = np.stack(np.meshgrid(*(np.arange(s) for s in shape), indexing="ij"), -1)
    for case in range(scaled(24, scale, 2)):
        center, radii = shape * rng.uniform(0.3, 0.7, 3), rng.uniform(8, 20, 3)
        label = (((grid - center) / radii) ** 2).sum(-1) < 1
        body = 60 * np.sin(grid[..., 0] / 9 + case) + 40 * np.cos(grid[..., 1] / 13)
        image = (body + 80 * label + 25 * rng.normal(size=tuple(shape))).astype(np.int16)
        np.savez_compressed(folder / f"case_{case:03d}.npz", image=image, label=label.astype(np.uint8))
    return {}


CELL = """
import glob
import os
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader

data_dir = 'Task03_small'
patch_size = 24
batch_size = 2
max_epochs = 5

class CTPatchDataset(Dataset):
    def __init__(self, data_dir, patch_size, fg_prob=0.67):
        self.files = sorted(glob.glob(os.path.join(data_dir, '*.npz')))
        self.patch_size = patch_size
        self.fg_prob = fg_prob

    def __len__(self):
        return len(self.files)

    def load_case(self, idx):
        data = np.load(self.files[idx])
        image, label = data['image'].astype(np.float32), data['label']
        image = np.clip(image, -160, 240)
        image = (image - image.mean()) / (image.std() + 1e-8)
        return image, label

    def __getitem__(self, idx):
        image, label = self.load_case(idx)
        ps = self.patch_size
        if np.random.rand() < self.fg_prob:
            fg = np.argwhere(label > 0)
            center = fg[np.random.randint(len(fg))]
        else:
            center = [np.random.randint(s) for s in image.shape]
        z, y, x = [int(np.clip(c - ps // 2, 0, s - ps)) for c, s in zip(center, image.shape)]
        image = image[z:z + ps, y:y + ps, x:x + ps]
        label = label[z:z + ps, y:y + ps, x:x + ps]
        for axis in range(3):
            if np.random.rand() < 0.5:
                image, label = np.flip(image, axis), np.flip(label, axis)
        if np.random.rand() < 0.3:
            image = image + np.random.normal(0, 0.1, image.shape)
        image = torch.from_numpy(np.ascontiguousarray(image, dtype=np.float32))[None]
        return image, torch.from_numpy(label.astype(np.float32))[None]

def double_conv(cin, cout):
    return nn.Sequential(
        nn.Conv3d(cin, cout, 3, padding=1, bias=False), nn.InstanceNorm3d(cout, affine=True), nn.LeakyReLU(0.01, True),
        nn.Conv3d(cout, cout, 3, padding=1, bias=False), nn.InstanceNorm3d(cout, affine=True), nn.LeakyReLU(0.01, True))

class UNet3D(nn.Module):
    def __init__(self, base=8):
        super().__init__()
        self.enc1 = double_conv(1, base)
        self.enc2 = double_conv(base, base * 2)
        self.enc3 = double_conv(base * 2, base * 4)
        self.pool = nn.MaxPool3d(2)
        self.up2 = nn.ConvTranspose3d(base * 4, base * 2, 2, stride=2)
        self.dec2 = double_conv(base * 4, base * 2)
        self.up1 = nn.ConvTranspose3d(base * 2, base, 2, stride=2)
        self.dec1 = double_conv(base * 2, base)
        self.out = nn.Conv3d(base, 1, 1)

    def forward(self, x):
        e1 = self.enc1(x)
        e2 = self.enc2(self.pool(e1))
        e3 = self.enc3(self.pool(e2))
        d2 = self.dec2(torch.cat([self.up2(e3), e2], 1))
        d1 = self.dec1(torch.cat([self.up1(d2), e1], 1))
        return self.out(d1)

class DiceBCELoss(nn.Module):
    def forward(self, logits, target, smooth=1.0):
        probs = torch.sigmoid(logits).flatten(1)
        flat = target.flatten(1)
        dice = (2 * (probs * flat).sum(1) + smooth) / (probs.sum(1) + flat.sum(1) + smooth)
        return 1 - dice.mean() + nn.functional.binary_cross_entropy_with_logits(logits, target)

device = torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')
train_loader = DataLoader(CTPatchDataset(data_dir, patch_size), batch_size=batch_size, shuffle=True)
model = UNet3D().to(device)
loss_function = DiceBCELoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-5)

n_patches = 0
for epoch in range(max_epochs):
    model.train()
    epoch_loss, epoch_dice, step = 0, 0, 0
    for inputs, labels in train_loader:
        step += 1
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = loss_function(outputs.float(), labels)
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
        with torch.no_grad():
            pred = (outputs > 0).float()
            epoch_dice += (2 * (pred * labels).sum() / (pred.sum() + labels.sum() + 1e-5)).item()
        n_patches += len(inputs)
    print(f'epoch {epoch + 1} average loss: {epoch_loss / step:.4f} dice: {epoch_dice / step:.4f}')
"""

CHANGES = (
    Change(
        "normalized volumes in memory",
        "cache_items",
        edits={
            "        self.fg_prob = fg_prob\n": "        self.fg_prob = fg_prob\n        self.cases = {}\n",
            "        image, label = self.load_case(idx)\n": "        if idx not in self.cases:\n"
            "            self.cases[idx] = self.load_case(idx)\n        image, label = self.cases[idx]\n",
        },
    ),
    Change(
        "volumes and foreground in memory",
        "cache_items",
        edits={
            "        self.fg_prob = fg_prob\n": "        self.fg_prob = fg_prob\n        self.cases = {}\n",
            "        image, label = self.load_case(idx)\n": "        if idx not in self.cases:\n"
            "            image, label = self.load_case(idx)\n"
            "            self.cases[idx] = image, label, np.argwhere(label > 0)\n"
            "        image, label, fg = self.cases[idx]\n",
            "            fg = np.argwhere(label > 0)\n": "",
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        outputs = model(inputs)\n": "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            outputs = model(inputs)\n"
        },
    ),
    Change("batches of 4", "larger_batch", edits={"batch_size = 2": "batch_size = 4"}),
    Change("fused AdamW", "fused_optimizer", edits={"weight_decay=1e-5)": "weight_decay=1e-5, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_patches", seconds=6)
