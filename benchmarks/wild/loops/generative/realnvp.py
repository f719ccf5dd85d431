"""A RealNVP density model of a table with 43 columns, in batches sliced from a tensor, as in density estimation repositories."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A table of the shape of MINIBOONE with correlated and skewed columns."""
    rows = scaled(8192, scale, 2048)
    mixed = np.random.normal(size=(rows + 1024, 43)) @ np.random.normal(size=(43, 43)) * 0.2
    table = np.where(np.arange(43) % 3 == 0, np.exp(0.3 * mixed), mixed).astype(np.float32)
    np.save("miniboone.npy", table)
    return {"epochs": 10}


CELL = """
import copy, math
import numpy as np
import torch
import torch.nn as nn

data = np.load('miniboone.npy')
data = (data - data.mean(0)) / data.std(0)
x_train, x_valid = torch.from_numpy(data[:-1024]), torch.from_numpy(data[-1024:])
n_dims, batch_size = x_train.shape[1], 512

class CouplingLayer(nn.Module):
    def __init__(self, dim, hidden, mask):
        super().__init__()
        self.register_buffer('mask', mask)
        self.scale_net = nn.Sequential(nn.Linear(dim, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(),
                                       nn.Linear(hidden, dim))
        self.translate_net = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                                           nn.Linear(hidden, dim))

    def forward(self, x):
        masked = x * self.mask
        log_s = torch.tanh(self.scale_net(masked)) * (1 - self.mask)
        t = self.translate_net(masked) * (1 - self.mask)
        return x * torch.exp(log_s) + t, log_s.sum(-1)

class RealNVP(nn.Module):
    def __init__(self, dim, hidden=256, n_layers=6):
        super().__init__()
        mask = (torch.arange(dim) % 2).float()
        self.layers = nn.ModuleList(CouplingLayer(dim, hidden, mask if i % 2 == 0 else 1 - mask) for i in range(n_layers))

    def log_prob(self, x):
        log_det = torch.zeros(len(x), device=x.device)
        for layer in self.layers:
            x, ld = layer(x)
            log_det = log_det + ld
        log_pz = (-0.5 * x ** 2 - 0.5 * math.log(2 * math.pi)).sum(-1)
        return log_pz + log_det

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
flow = RealNVP(n_dims).to(device)
optimizer = torch.optim.Adam(flow.parameters(), lr=1e-4, weight_decay=1e-6)
x_train, x_valid = x_train.to(device), x_valid.to(device)

best, n_rows = -float('inf'), 0
for epoch in range(epochs):
    flow.train()
    train_loss = 0.
    perm = torch.randperm(len(x_train), device=device)
    for i in range(0, len(x_train), batch_size):
        x = x_train[perm[i:i + batch_size]]
        loss = -flow.log_prob(x).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
        optimizer.step()
        train_loss += loss.item()
        n_rows += len(x)
    flow.eval()
    with torch.no_grad():
        valid = flow.log_prob(x_valid).mean().item()
    if valid > best:
        best, best_state = valid, copy.deepcopy(flow.state_dict())
    print(f'epoch {epoch + 1}: train {-train_loss * batch_size / len(x_train):.3f} valid {valid:.3f}')
"""

CHANGES = (
    Change("batches of 2048", "larger_batch", edits={"x_train.shape[1], 512": "x_train.shape[1], 2048"}),
    Change("fused Adam", "fused_optimizer", edits={"weight_decay=1e-6)": "weight_decay=1e-6, fused=True)"}),
    Change(
        "sum the losses as a tensor", "remove_syncs", edits={"train_loss += loss.item()": "train_loss += loss.detach()"}
    ),
    Change(
        "compile",
        "compile",
        edits={
            "loss = -flow.log_prob(x).mean()": "loss = -log_prob(x).mean()",
            "best, n_rows =": "log_prob = torch.compile(flow.log_prob)\nbest, n_rows =",
        },
    ),
    Change(
        "validate in every second epoch",
        "eval_less_often",
        edits={
            "    flow.eval()\n": "    if epoch % 2 == 0:\n        continue\n    flow.eval()\n",
        },
    ),
    Change("one thread", "threads", edits={"best, n_rows =": "torch.set_num_threads(1)\nbest, n_rows ="}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_rows", seconds=6)
