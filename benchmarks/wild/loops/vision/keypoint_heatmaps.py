"""Keypoint heatmaps that every item draws with NumPy, and an accuracy in NumPy after every step, as in pose repositories."""

import numpy as np
from torch import nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def pose_net(joints: int) -> nn.Module:
    """Strided convolutions and two deconvolutions, a small SimpleBaseline."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((3, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    for inputs, outputs in ((128, 64), (64, 64)):
        layers += [nn.ConvTranspose2d(inputs, outputs, 4, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(64, joints, 1))


def prepare(scale: float) -> Namespace:
    """Crops of persons of 96 by 96 pixels, and seventeen joints with a visibility each."""
    count = scaled(640, scale, 64)
    return {
        "images": np.random.randint(0, 256, (count, 96, 96, 3), dtype=np.uint8),
        "joints": np.random.uniform(4, 92, (count, 17, 2)).astype(np.float32),
        "visible": np.random.rand(count, 17) < 0.8,
        "pose_net": pose_net,
    }


CELL = """
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader

FLIP = [0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15]

class PoseDataset(Dataset):
    def __init__(self, images, joints, visible, heatmap_size=48, sigma=2):
        self.images, self.joints, self.visible = images, joints, visible
        self.heatmap_size, self.sigma = heatmap_size, sigma
        self.stride = images.shape[1] / heatmap_size

    def __len__(self):
        return len(self.images)

    def generate_heatmap(self, cx, cy):
        x, y = np.meshgrid(np.arange(self.heatmap_size), np.arange(self.heatmap_size))
        return np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * self.sigma ** 2))

    def __getitem__(self, idx):
        img = self.images[idx].astype(np.float32) / 255
        pts, vis = self.joints[idx].copy(), self.visible[idx]
        if np.random.rand() < 0.5:
            img = img[:, ::-1]
            pts[:, 0] = img.shape[1] - 1 - pts[:, 0]
            pts, vis = pts[FLIP], vis[FLIP]
        img = (img - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        target = np.zeros((len(pts), self.heatmap_size, self.heatmap_size))
        for j, (px, py) in enumerate(pts / self.stride):
            if vis[j]:
                target[j] = self.generate_heatmap(px, py)
        img = torch.from_numpy(img.transpose(2, 0, 1).copy()).float()
        return img, torch.from_numpy(target).float(), torch.from_numpy(vis.astype(np.float32))

def get_max_preds(heatmaps):
    n, k, h, w = heatmaps.shape
    idx = heatmaps.reshape(n, k, -1).argmax(2)
    return np.stack([idx % w, idx // w], axis=2).astype(np.float32)

def pck(output, target, thr=0.5):
    pred, gt = get_max_preds(output), get_max_preds(target)
    hits, total = 0, 0
    for n in range(pred.shape[0]):
        for j in range(pred.shape[1]):
            if gt[n, j, 0] > 1 and gt[n, j, 1] > 1:
                total += 1
                if np.linalg.norm((pred[n, j] - gt[n, j]) / (target.shape[2] / 10)) < thr:
                    hits += 1
    return hits / max(total, 1)

train_loader = DataLoader(PoseDataset(images, joints, visible), batch_size=16, shuffle=True, num_workers=0)
model = pose_net(17)
criterion = nn.MSELoss(reduction='none')
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

n_persons = 0
for epoch in range(2):
    model.train()
    losses, acc = [], []
    for i, (inp, target, weight) in enumerate(train_loader):
        output = model(inp)
        loss = (criterion(output, target).mean((2, 3)) * weight).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        acc.append(pck(output.detach().cpu().numpy(), target.detach().cpu().numpy()))
        n_persons += inp.size(0)
        if i % 10 == 0:
            print(f'Epoch: [{epoch}][{i}/{len(train_loader)}] Loss {np.mean(losses):.5f} Accuracy {np.mean(acc):.3f}')
"""

CHANGES = (
    Change(
        "heatmaps as products of two vectors",
        "vectorize_items",
        edits={
            """        target = np.zeros((len(pts), self.heatmap_size, self.heatmap_size))
        for j, (px, py) in enumerate(pts / self.stride):
            if vis[j]:
                target[j] = self.generate_heatmap(px, py)
""": """        grid = np.arange(self.heatmap_size, dtype=np.float32)
        bells = np.exp(-(grid - (pts / self.stride)[..., None]) ** 2 / (2 * self.sigma ** 2))
        target = bells[:, 1, :, None] * bells[:, 0, None, :] * vis[:, None, None]
"""
        },
    ),
    Change(
        "accuracy only where it is printed",
        "fewer_logs",
        edits={"        acc.append(pck(": "        if i % 10 == 0:\n            acc.append(pck("},
    ),
    Change("two workers", "num_workers", edits={"num_workers=0": "num_workers=2"}),
    Change("batches of 64", "larger_batch", edits={"batch_size=16": "batch_size=64"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        output = model(inp)\n": "        with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "            output = model(inp)\n        output = output.float()\n"
        },
    ),
    Change(
        "channels last",
        "channels_last",
        edits={
            "pose_net(17)": "pose_net(17).to(memory_format=torch.channels_last)",
            "model(inp)": "model(inp.to(memory_format=torch.channels_last))",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_persons", seconds=6)
