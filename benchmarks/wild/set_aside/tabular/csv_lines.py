"""An autoencoder for fraud on transactions whose CSV lines are parsed in __getitem__."""

from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A file with thirty columns of numbers."""
    count = scaled(40_960, scale, 128)
    values = np.random.randn(count, 30) * np.linspace(0.5, 20, 30) + np.arange(30)
    header = ",".join(["Time", *(f"V{i}" for i in range(1, 29)), "Amount", "Class"])
    rows = [",".join(f"{value:.6f}" for value in row) + ",0" for row in values]
    Path("creditcard.csv").write_text("\n".join([header, *rows]) + "\n")
    return {"csv_path": "creditcard.csv"}


CELL = """
import csv
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader

class TransactionDataset(Dataset):
    def __init__(self, path):
        with open(path) as f:
            self.header = next(f).strip().split(',')
            self.lines = f.readlines()
        sample = np.array([self.parse(l) for l in self.lines[:1000]])
        self.mean, self.std = sample.mean(0), sample.std(0) + 1e-8

    def parse(self, line):
        row = dict(zip(self.header, next(csv.reader([line]))))
        return [float(row[name]) for name in self.header if name != 'Class']

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, idx):
        x = np.array(self.parse(self.lines[idx]))
        x = (x - self.mean) / self.std
        x = np.clip(x, -5, 5)
        return torch.tensor(x, dtype=torch.float32)

class AutoEncoder(nn.Module):
    def __init__(self, n=30):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(n, 20), nn.Tanh(), nn.Linear(20, 10), nn.Tanh(), nn.Linear(10, 4))
        self.dec = nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, n))

    def forward(self, x):
        return self.dec(self.enc(x))

ds = TransactionDataset(csv_path)
dl = DataLoader(ds, batch_size=128, shuffle=True)
model = AutoEncoder()
opt = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)
mse = nn.MSELoss()

n_rows = 0
for epoch in range(8):
    total = 0
    for x in dl:
        noisy = x + 0.1 * torch.randn_like(x)
        loss = mse(model(noisy), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(x)
        n_rows += len(x)
    print('epoch', epoch, 'reconstruction error', total / len(ds))
"""

CHANGES = (
    Change(
        "parse every line once",
        "cache_items",
        edits={
            "        self.mean, self.std = sample.mean(0), sample.std(0) + 1e-8\n": """        self.mean, self.std = sample.mean(0), sample.std(0) + 1e-8
        self.items = [self.make_item(l) for l in self.lines]

    def make_item(self, line):
        x = np.clip((np.array(self.parse(line)) - self.mean) / self.std, -5, 5)
        return torch.tensor(x, dtype=torch.float32)
""",
            """        x = np.array(self.parse(self.lines[idx]))
        x = (x - self.mean) / self.std
        x = np.clip(x, -5, 5)
        return torch.tensor(x, dtype=torch.float32)
""": "        return self.items[idx]\n",
        },
    ),
    Change(
        "read with NumPy, whole batches",
        "batch_whole",
        edits={
            "ds = TransactionDataset(csv_path)\ndl = DataLoader(ds, batch_size=128, shuffle=True)\n": """import pandas as pd
table = pd.read_csv(csv_path).drop(columns='Class').to_numpy()
mean, std = table[:1000].mean(0), table[:1000].std(0) + 1e-8
ds = torch.tensor(np.clip((table - mean) / std, -5, 5), dtype=torch.float32)
sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(ds), 128, False)
dl = DataLoader(ds, sampler=sampler, batch_size=None)
"""
        },
    ),
    Change(
        "split without csv and dict",
        "vectorize_items",
        edits={
            """        row = dict(zip(self.header, next(csv.reader([line]))))
        return [float(row[name]) for name in self.header if name != 'Class']
""": "        return [float(v) for v in line.split(',')[:-1]]\n"
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("fused Adam", "fused_optimizer", edits={"weight_decay=1e-5)": "weight_decay=1e-5, fused=True)"}),
    Change("compile", "compile", edits={"model = AutoEncoder()": "model = torch.compile(AutoEncoder())"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_rows", seconds=5)
