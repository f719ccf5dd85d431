"""Spectrograms in compressed NumPy archives with SpecAugment and a GRU, as in speech emotion notebooks."""

from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """One compressed archive per utterance."""
    count = scaled(512, scale, 32)
    Path("features").mkdir()
    for index in range(count):
        spectrogram = np.random.normal(size=(400, 128)).astype(np.float32)
        np.savez_compressed(f"features/{index:05d}.npz", logmel=spectrogram, label=index % 8)
    return {}


CELL = """
import glob, random
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader

class EmotionDataset(Dataset):
    def __init__(self, folder):
        self.paths = sorted(glob.glob(folder + '/*.npz'))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        item = np.load(self.paths[index])
        spec, label = item['logmel'].copy(), int(item['label'])
        for _ in range(2):
            f, t = random.randint(0, 20), random.randint(0, 40)
            f0, t0 = random.randint(0, spec.shape[1] - f), random.randint(0, spec.shape[0] - t)
            spec[:, f0:f0 + f] = spec.mean()
            spec[t0:t0 + t, :] = spec.mean()
        spec = (spec - spec.mean()) / (spec.std() + 1e-5)
        return torch.from_numpy(spec[::4]), label

class GRUNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.gru = nn.GRU(128, 48, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(96, classes)

    def forward(self, x):
        out, _ = self.gru(x)
        return self.fc(out.mean(1))

train_loader = DataLoader(EmotionDataset('features'), batch_size=32, shuffle=True, num_workers=0, drop_last=True)
net = GRUNet(8)
opt = torch.optim.Adam(net.parameters(), lr=5e-4)
history, utterances = [], 0
for epoch in range(3):
    for spec, label in train_loader:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(spec), label)
        loss.backward()
        nn.utils.clip_grad_value_(net.parameters(), 1.0)
        opt.step()
        history.append(loss.item())
        utterances += len(label)
    print(f'epoch {epoch}: {np.mean(history[-len(train_loader):]):.4f}')
"""

CHANGES = (
    Change(
        "one uncompressed array, memory-mapped",
        "storage_format",
        edits={
            "        self.paths = sorted(glob.glob(folder + '/*.npz'))\n": """        self.paths = sorted(glob.glob(folder + '/*.npz'))
        items = [np.load(path) for path in self.paths]
        np.save('logmel.npy', np.stack([item['logmel'] for item in items]))
        self.labels = [int(item['label']) for item in items]
        self.logmel = np.load('logmel.npy', mmap_mode='r')
""",
            """        item = np.load(self.paths[index])
        spec, label = item['logmel'].copy(), int(item['label'])
""": "        spec, label = np.array(self.logmel[index]), self.labels[index]\n",
        },
    ),
    Change("two workers", "num_workers", edits={"num_workers=0": "num_workers=2"}),
    Change(
        "mean once, every fourth frame first",
        "vectorize_items",
        edits={
            "spec, label = item['logmel'].copy(), int(item['label'])\n": "spec, label = item['logmel'], int(item['label'])\n"
            "        mean = spec.mean()\n",
            "            spec[:, f0:f0 + f] = spec.mean()\n            spec[t0:t0 + t, :] = spec.mean()\n": ""
            "            spec[:, f0:f0 + f] = mean\n            spec[t0:t0 + t, :] = mean\n",
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=5e-4)": "lr=5e-4, fused=True)"}),
    Change(
        "one thread",
        "threads",
        edits={"history, utterances = [], 0": "history, utterances = [], 0\ntorch.set_num_threads(1)"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="utterances", seconds=6)
