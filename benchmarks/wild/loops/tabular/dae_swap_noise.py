"""A denoising autoencoder with swap noise on a whole table in memory, in the manner of Porto Seguro's first place."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A table with numeric and categorical columns."""
    rng = np.random.default_rng(0)
    count = scaled(45_056, scale, 2048)
    frame = pd.DataFrame(rng.normal(size=(count, 26)).astype(np.float32), columns=[f"ps_reg_{k:02}" for k in range(26)])
    for k in range(14):
        frame[f"ps_car_{k:02}_cat"] = rng.integers(0, 12, count)
    frame.to_pickle("train.pkl")
    return {}


CELL = """
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F

df = pd.read_pickle('train.pkl')
cats = [c for c in df.columns if c.endswith('_cat')]
nums = [c for c in df.columns if not c.endswith('_cat')]
ranks = df[nums].rank(pct=True).clip(1e-4, 1 - 1e-4)
gauss = torch.erfinv(torch.from_numpy(ranks.to_numpy('float32')) * 2 - 1) * 2 ** 0.5
onehot = torch.from_numpy(pd.get_dummies(df[cats].astype('category')).to_numpy('float32'))
X = torch.cat([gauss, onehot], dim=1)
n, d = X.shape
columns = torch.arange(d)

class DAE(nn.Module):
    def __init__(self, dim, hidden=1280):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                                     nn.Linear(hidden, hidden), nn.ReLU())
        self.out = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.out(self.encoder(x))

def swap_noise(idx, p=0.15):
    rows = torch.where(torch.rand(len(idx), d) < p, torch.randint(n, (len(idx), d)), idx[:, None])
    return X[rows, columns]

EPOCHS, BS = 2, 1024
model = DAE(d)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, fused=True)
rows_seen = 0

for epoch in range(EPOCHS):
    total = torch.zeros(())
    perm = torch.randperm(n)
    for idx in perm.split(BS):
        with torch.autocast('cpu', dtype=torch.bfloat16):
            recon = model(swap_noise(idx))
        loss = F.mse_loss(recon.float(), X[idx])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.detach() * len(idx)
        rows_seen += len(idx)
    print(f'epoch {epoch} mse {total.item() / n:.5f}')
"""

CHANGES = (
    Change("torch.compile", "compile", edits={"model = DAE(d)": "model = torch.compile(DAE(d))"}),
    Change("batches of 2048", "larger_batch", edits={"EPOCHS, BS = 2, 1024": "EPOCHS, BS = 2, 2048"}),
    Change(
        "swap in place where the mask is set",
        "remove_python",
        edits={
            """    rows = torch.where(torch.rand(len(idx), d) < p, torch.randint(n, (len(idx), d)), idx[:, None])
    return X[rows, columns]
""": """    x = X[idx]
    r, c = (torch.rand(len(idx), d) < p).nonzero(as_tuple=True)
    x[r, c] = X[torch.randint(n, r.shape), c]
    return x
"""
        },
    ),
    Change(
        "shuffle the table once per epoch",
        "batch_whole",
        edits={
            "    for idx in perm.split(BS):\n": "    for idx, target in zip(perm.split(BS), X[perm].split(BS)):\n",
            "F.mse_loss(recon.float(), X[idx])": "F.mse_loss(recon.float(), target)",
        },
    ),
    Change(
        "no running loss",
        "fewer_logs",
        edits={"        total += loss.detach() * len(idx)\n": "", "{total.item() / n:.5f}": "{loss.item():.5f}"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="rows_seen", seconds=8)
