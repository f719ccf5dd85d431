"""A CNN with an LSTM that classifies gesture clips from compressed npz files, one per clip, as in course projects."""

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Clips of 32 frames with a moving blob, and a CSV of labels."""
    rng = np.random.default_rng(0)
    Path("clips").mkdir()
    count = scaled(240, scale, 8)
    labels = rng.integers(0, 6, count)
    rows, columns = np.mgrid[:64, :64]
    for number, label in enumerate(labels):
        centre = 32 + 20 * np.sin(np.arange(32) * (0.1 + 0.05 * label) + rng.random())
        blob = 200 * np.exp(-((rows - 32) ** 2 + (columns - centre[:, None, None]) ** 2) / 80)
        frames = blob[..., None] + rng.integers(0, 24, (32, 64, 64, 3))
        np.savez_compressed(f"clips/{number:04d}.npz", frames=frames.astype(np.uint8))
    frame = pd.DataFrame({"clip": [f"{number:04d}.npz" for number in range(count)], "label": labels})
    frame.to_csv("labels.csv", index=False)
    return {}


CELL = """
import os
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader

class GestureDataset(Dataset):
    def __init__(self, csv_file, root, num_frames=8):
        self.annotations = pd.read_csv(csv_file)
        self.root, self.num_frames = root, num_frames
        self.mean, self.std = 0.45, 0.225

    def __len__(self):
        return len(self.annotations)

    def load(self, index):
        return np.load(os.path.join(self.root, self.annotations.iloc[index, 0]))['frames']

    def __getitem__(self, index):
        frames = self.load(index)
        seg = len(frames) // self.num_frames
        picked = np.arange(self.num_frames) * seg + np.random.randint(0, seg, self.num_frames)
        clip = torch.from_numpy(frames[picked]).permute(0, 3, 1, 2).float() / 255
        return (clip - self.mean) / self.std, int(self.annotations.iloc[index, 1])

class CNNLSTM(nn.Module):
    def __init__(self, num_classes, hidden=64):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(3, 12, 5, stride=4, padding=2), nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(24, 32, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.lstm = nn.LSTM(128, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, num_classes)

    def forward(self, x):
        b, t = x.shape[:2]
        feats = self.cnn(x.flatten(0, 1)).view(b, t, -1)
        out, _ = self.lstm(feats)
        return self.fc(out[:, -1])

dataset = GestureDataset('labels.csv', 'clips')
train_loader = DataLoader(dataset, batch_size=8, shuffle=True)
net = CNNLSTM(6)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()

clips_seen, num_epochs = 0, 6
for epoch in range(num_epochs):
    losses = []
    for batch_idx, (data, target) in enumerate(train_loader):
        scores = net(data)
        loss = criterion(scores, target)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        clips_seen += len(target)
    print(f'Cost at epoch {epoch} is {sum(losses) / len(losses):.4f}')
"""

CHANGES = (
    Change(
        "unpack the clips once into a memory-mapped array",
        "storage_format",
        edits={
            "dataset = GestureDataset('labels.csv', 'clips')\n": """dataset = GestureDataset('labels.csv', 'clips')
first = dataset.load(0)
packed = np.lib.format.open_memmap('clips.npy', 'w+', np.uint8, (len(dataset), *first.shape))
for k in range(len(dataset)):
    packed[k] = dataset.load(k)
packed.flush()
dataset.load = np.load('clips.npy', mmap_mode='r').__getitem__
"""
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change(
        "two workers that persist",
        "persistent_workers",
        edits={"shuffle=True)": "shuffle=True, num_workers=2, persistent_workers=True)"},
    ),
    Change(
        "normalize on whole batches",
        "vectorize_items",
        edits={
            "torch.from_numpy(frames[picked]).permute(0, 3, 1, 2).float() / 255": "torch.from_numpy(frames[picked])",
            "(clip - self.mean) / self.std, int": "clip, int",
            "        scores = net(data)\n": "        data = data.permute(0, 1, 4, 2, 3).float().div_(255)\n"
            "        scores = net(data.sub_(dataset.mean).div_(dataset.std))\n",
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="clips_seen", seconds=7)
