"""A DeepONet that learns the antiderivative, with every input function repeated for each of its query points."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Random smooth functions at sensors, and their antiderivatives at the same query points."""
    rng = np.random.default_rng(0)
    count = scaled(960, scale, 16)
    grid = np.linspace(0, 1, 100)
    waves = np.sin(np.pi * np.arange(1, 9)[:, None] * grid) / np.arange(1, 9)[:, None]
    functions = rng.normal(size=(count, 8)) @ waves
    integrals = np.cumsum(functions, axis=1) / 100
    arrays = (functions, grid, integrals)
    u, y, s = (array.astype(np.float32) for array in arrays)
    np.savez("antiderivative.npz", u=u, y=y, s=s)
    return {}


CELL = """
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader

class OperatorDataset(Dataset):
    def __init__(self, path):
        d = np.load(path)
        self.u, self.y, self.s = (torch.from_numpy(d[k]) for k in ('u', 'y', 's'))

    def __len__(self):
        return len(self.u)

    def __getitem__(self, i):
        # (P, m), (P, 1), (P, 1)
        return self.u[i].repeat(len(self.y), 1), self.y[:, None], self.s[i][:, None]

def fnn(sizes):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])

class DeepONet(nn.Module):
    def __init__(self, m=100, width=256, p=128):
        super().__init__()
        self.branch = fnn([m, width, width, width, p])
        self.trunk = fnn([1, width, width, width, p])
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, u, y):
        b = self.branch(u)
        t = torch.relu(self.trunk(y))
        return (b * t).sum(-1, keepdim=True) + self.bias

net = DeepONet()
loader = DataLoader(OperatorDataset('antiderivative.npz'), batch_size=16, shuffle=True)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.9)
history, n_functions = [], 0

for epoch in range(3):
    losses = []
    for u, y, s in loader:
        pred = net(u, y)
        loss = ((pred - s) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        n_functions += u.shape[0]
    sched.step()
    history.append(np.mean(losses))
    print(f'epoch {epoch}  mse {history[-1]:.3e}  lr {sched.get_last_lr()[0]:.1e}')
"""

CHANGES = (
    Change(
        "branch once per function, trunk once per point",
        "other",
        edits={
            "        return self.u[i].repeat(len(self.y), 1), self.y[:, None], self.s[i][:, None]\n": ""
            "        return self.u[i], self.y[:, None], self.s[i][:, None]\n",
            "        t = torch.relu(self.trunk(y))\n        return (b * t).sum(-1, keepdim=True) + self.bias\n": ""
            "        t = torch.relu(self.trunk(y[0]))\n        return (b @ t.t()).unsqueeze(-1) + self.bias\n",
        },
    ),
    Change(
        "repeat as a view in the model",
        "vectorize_items",
        edits={
            "self.u[i].repeat(len(self.y), 1)": "self.u[i]",
            "        b = self.branch(u)\n": "        b = self.branch(u[:, None].expand(-1, y.shape[1], -1))\n",
        },
    ),
    Change(
        "bfloat16",
        "precision",
        edits={
            "        pred = net(u, y)\n": ""
            "        with torch.autocast('cpu', torch.bfloat16):\n            pred = net(u, y)\n"
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
    Change("torch.compile", "compile", edits={"net = DeepONet()": "net = torch.compile(DeepONet())"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_functions", seconds=5)
