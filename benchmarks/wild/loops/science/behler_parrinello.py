"""A Behler-Parrinello potential; symmetry functions of configurations that never change are computed in every forward pass."""

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Clusters of argon atoms, relaxed a little, with Lennard-Jones energies."""
    count, atoms = scaled(512, scale, 64), 32
    positions = (torch.rand(count, atoms, 3) - 0.5) * 7.5
    for _ in range(30):
        vectors = positions[:, :, None] - positions[:, None]
        distances = vectors.norm(dim=-1, keepdim=True) + 1e-6
        positions += 0.1 * (vectors / distances * (distances < 1.6)).sum(2)
    distances = torch.stack([torch.pdist(p) for p in positions]).clamp(min=0.9)
    return {"positions": positions, "energies": (4 * (distances**-12 - distances**-6)).sum(1)}


CELL = """
import math
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

R_CUT, BATCH_SIZE, EPOCHS = 4.0, 16, 4

class SymmetryFunctions(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('eta_rad', torch.tensor([0.05, 0.2, 0.5, 1.0, 2.0, 4.0]))
        self.register_buffer('r_shift', torch.tensor([1.0, 1.5, 2.0, 2.5]))
        self.eta_ang = [0.01, 0.1]
        self.zetas = [1, 2, 4, 16]
        self.lambdas = [-1, 1]

    def cutoff(self, r):
        return 0.5 * (torch.cos(math.pi * r / R_CUT) + 1) * (r < R_CUT)

    def forward(self, pos):
        vec = pos[:, None, :, :] - pos[:, :, None, :]
        eye = torch.eye(pos.shape[1], device=pos.device)
        r = (vec.pow(2).sum(-1) + eye).sqrt()
        fc = self.cutoff(r) * (1 - eye)
        features = []
        for eta in self.eta_rad:
            for r_s in self.r_shift:
                features.append((torch.exp(-eta * (r - r_s) ** 2) * fc).sum(-1))
        cos_theta = torch.einsum('bijx,bikx->bijk', vec, vec) / (r[:, :, :, None] * r[:, :, None, :])
        r_jk = r[:, None, :, :]
        fc_ijk = fc[:, :, :, None] * fc[:, :, None, :] * fc[:, None, :, :]
        r2_sum = r[:, :, :, None] ** 2 + r[:, :, None, :] ** 2 + r_jk ** 2
        for eta in self.eta_ang:
            for zeta in self.zetas:
                for lam in self.lambdas:
                    g = 2 ** (1 - zeta) * (1 + lam * cos_theta) ** zeta * torch.exp(-eta * r2_sum) * fc_ijk
                    features.append(g.sum(dim=(2, 3)))
        return torch.stack(features, dim=-1)

class BPNN(nn.Module):
    def __init__(self, n_features=40, hidden=64):
        super().__init__()
        self.descriptor = SymmetryFunctions()
        self.norm = nn.BatchNorm1d(n_features)
        self.atomic = nn.Sequential(nn.Linear(n_features, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(),
                                    nn.Linear(hidden, 1))

    def forward(self, pos):
        g = self.descriptor(pos)
        g = self.norm(g.flatten(0, 1)).view_as(g)
        return self.atomic(g).sum(dim=(1, 2))

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
e_mean, e_std = energies.mean(), energies.std()
train_set = TensorDataset(positions, (energies - e_mean) / e_std)
train_loader = DataLoader(train_set, batch_size=BATCH_SIZE, shuffle=True)
model = BPNN().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=20)
mae_loss = nn.L1Loss()

n_configs = 0
for epoch in range(EPOCHS):
    model.train()
    total_mse, total_mae = 0.0, 0.0
    for pos, e_ref in train_loader:
        pos, e_ref = pos.to(device), e_ref.to(device)
        e_pred = model(pos)
        loss = ((e_pred - e_ref) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total_mse += loss.item() * len(pos)
        total_mae += mae_loss(e_pred, e_ref).item() * len(pos)
        n_configs += len(pos)
    scheduler.step(total_mse)
    print(f'epoch {epoch}: rmse {math.sqrt(total_mse / len(train_set)):.4f} mae {total_mae / len(train_set):.4f}')
"""

CHANGES = (
    Change(
        "symmetry functions once",
        "cache_items",
        edits={
            "        g = self.descriptor(pos)\n        g = self.norm": "        g = pos\n        g = self.norm",
            "train_set = TensorDataset(positions, (energies - e_mean) / e_std)\n": ""
            "features = torch.cat([SymmetryFunctions()(pos) for pos in positions.split(64)])\n"
            "train_set = TensorDataset(features, (energies - e_mean) / e_std)\n",
        },
    ),
    Change(
        "exponentials once per width",
        "remove_python",
        edits={
            "        for eta in self.eta_ang:\n": "        for eta in self.eta_ang:\n"
            "            radial = torch.exp(-eta * r2_sum) * fc_ijk\n",
            "* torch.exp(-eta * r2_sum) * fc_ijk\n": "* radial\n",
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("batches of 64", "larger_batch", edits={"EPOCHS = 4.0, 16, 4": "EPOCHS = 4.0, 64, 4"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
    Change(
        "no graph of the symmetry functions",
        "no_grad",
        edits={
            "    def forward(self, pos):\n        vec": "    @torch.no_grad()\n    def forward(self, pos):\n        vec"
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_configs", seconds=6)
