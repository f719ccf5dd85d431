"""A deep ensemble of small networks for predictive uncertainty, trained one after another on a UCI-like table."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A table with eight columns and a target whose noise depends on the first, as in the concrete data."""
    rng = np.random.default_rng(0)
    count, columns = 3200, 8
    x = rng.normal(size=(count, columns)).astype(np.float32)
    y = np.sin(x @ rng.normal(size=columns)) + 0.3 * np.abs(x[:, 0]) * rng.normal(size=count)
    return {"X_train": x, "y_train": y.astype(np.float32), "epochs": scaled(50, scale, 2)}


CELL = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

M = 5            # networks in the ensemble
batch_size = 100
lr = 1e-3

X = torch.tensor(X_train)
y = torch.tensor(y_train).unsqueeze(1)
X = (X - X.mean(0)) / X.std(0)
y_mean, y_std = y.mean(), y.std()
y = (y - y_mean) / y_std


class GaussianMLP(nn.Module):
    \"\"\"Predicts mean and variance of a Gaussian\"\"\"

    def __init__(self, inputs, hidden=50):
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, 2)

    def forward(self, x):
        h = F.relu(self.fc2(F.relu(self.fc1(x))))
        mean, raw = self.out(h).chunk(2, dim=-1)
        return mean, F.softplus(raw) + 1e-6


def nll(mean, var, target):
    return (0.5 * torch.log(var) + 0.5 * (target - mean) ** 2 / var).mean()


seen = 0


def train_member(seed):
    global seen
    torch.manual_seed(seed)
    net = GaussianMLP(X.shape[1])
    opt = torch.optim.Adam(net.parameters(), lr=lr)
    loader = DataLoader(TensorDataset(X, y), batch_size=batch_size, shuffle=True)
    for epoch in range(epochs):
        for xb, yb in loader:
            opt.zero_grad()
            loss = nll(*net(xb), yb)
            loss.backward()
            opt.step()
            seen += len(xb)
    return net, loss.item()


ensemble, losses = [], []
for m in range(M):
    net, last = train_member(m)
    ensemble.append(net)
    losses.append(last)
    print(f'network {m + 1}/{M}: nll {last:.4f}')

with torch.no_grad():
    means, variances = zip(*[net(X) for net in ensemble])
    means, variances = torch.stack(means), torch.stack(variances)
    mean = means.mean(0)
    var = (variances + means ** 2).mean(0) - mean ** 2
rmse = ((mean - y) ** 2).mean().sqrt() * y_std
print(f'ensemble: rmse {rmse:.4f} nll {nll(mean, var, y):.4f}')
"""

_FROM = CELL[CELL.index("seen = 0\n") : CELL.index("with torch.no_grad()")]
_TOGETHER = """from torch.func import functional_call, stack_module_state

ensemble = []
for m in range(M):
    torch.manual_seed(m)
    ensemble.append(GaussianMLP(X.shape[1]))
stacked, buffers = stack_module_state(ensemble)
opt = torch.optim.Adam(stacked.values(), lr=lr)
predict = torch.vmap(lambda p, b, x: functional_call(ensemble[0], (p, b), (x,)))
seen = 0
for epoch in range(epochs):
    order = torch.rand(M, len(X)).argsort(1)
    for idx in order.split(batch_size, dim=1):
        opt.zero_grad()
        loss = nll(*predict(stacked, buffers, X[idx]), y[idx]) * M
        loss.backward()
        opt.step()
        seen += idx.numel()
losses = [loss.item() / M]
with torch.no_grad():
    for m, net in enumerate(ensemble):
        for name, p in net.named_parameters():
            p.copy_(stacked[name][m])

"""

CHANGES = (
    Change("all networks at once with vmap", "other", edits={_FROM: _TOGETHER}),
    Change(
        "batches cut from a permutation",
        "batch_whole",
        edits={
            "    loader = DataLoader(TensorDataset(X, y), batch_size=batch_size, shuffle=True)\n": "",
            "        for xb, yb in loader:\n": "        for idx in torch.randperm(len(X)).split(batch_size):\n"
            "            xb, yb = X[idx], y[idx]\n",
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"net.parameters(), lr=lr)": "net.parameters(), lr=lr, fused=True)"}),
    Change("one thread", "threads", edits={"lr = 1e-3\n": "lr = 1e-3\ntorch.set_num_threads(1)\n"}),
    Change("batches of 400", "larger_batch", edits={"batch_size = 100": "batch_size = 400"}),
    Change(
        "a worker, kept",
        "num_workers",
        edits={"shuffle=True)": "shuffle=True, num_workers=1, persistent_workers=True)"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", loss="losses[-1]", seconds=9, same_steps=False)
