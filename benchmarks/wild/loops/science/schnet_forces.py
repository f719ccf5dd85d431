"""A SchNet for energies and forces of one molecule, as for MD17: edges once, batches of tensors; a healthy loop."""

import numpy as np
import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Geometries of twelve atoms with energies and forces of a Morse potential between all pairs."""
    rng = np.random.default_rng(0)
    count, atoms = scaled(7200, scale, 80), 12
    lattice = np.stack(np.meshgrid(range(3), range(2), range(2)), -1).reshape(-1, 3) * 1.4
    positions = lattice + rng.normal(0, 0.12, (count, atoms, 3))
    difference = positions[:, :, None] - positions[:, None]
    distance = np.sqrt((difference**2).sum(-1)) + np.eye(atoms)
    decay = np.exp(-1.2 * (distance - 1.4)) * (1 - np.eye(atoms))
    energy = (decay**2 - 2 * decay).sum((1, 2)) / 2
    slope = -2.4 * (decay**2 - decay)
    forces = -((slope / distance)[..., None] * difference).sum(2)
    return {
        "R": torch.from_numpy(positions.astype(np.float32)),
        "E": torch.from_numpy((energy - energy.mean()).astype(np.float32)),
        "F": torch.from_numpy(forces.astype(np.float32)),
        "z": torch.tensor([6, 6, 6, 6, 8, 8, 1, 1, 1, 1, 1, 1]),
    }


CELL = """
import math
import torch
from torch import nn

torch.manual_seed(0)
batch_size, lr, rho = 20, 5e-4, 0.99
hidden, n_gaussians, cutoff, n_interactions = 64, 32, 6.0, 3
n_atoms = len(z)

# all ordered pairs of atoms of one molecule
src, dst = torch.where(~torch.eye(n_atoms, dtype=torch.bool))


class ShiftedSoftplus(nn.Module):
    def forward(self, x):
        return nn.functional.softplus(x) - math.log(2.0)


class Interaction(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(n_gaussians, hidden), ShiftedSoftplus(), nn.Linear(hidden, hidden))
        self.lin1 = nn.Linear(hidden, hidden, bias=False)
        self.out = nn.Sequential(nn.Linear(hidden, hidden), ShiftedSoftplus(), nn.Linear(hidden, hidden))

    def forward(self, h, rbf, envelope, src, dst):
        w = self.filter(rbf) * envelope
        messages = self.lin1(h)[src] * w
        total = torch.zeros_like(h).index_add(0, dst, messages)
        return h + self.out(total)


class SchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, hidden)
        self.register_buffer('centers', torch.linspace(0, cutoff, n_gaussians))
        self.interactions = nn.ModuleList(Interaction() for _ in range(n_interactions))
        self.readout = nn.Sequential(nn.Linear(hidden, hidden // 2), ShiftedSoftplus(), nn.Linear(hidden // 2, 1))

    def forward(self, z, pos, src, dst, n_molecules):
        d = (pos[src] - pos[dst]).pow(2).sum(-1).sqrt()
        rbf = torch.exp(-10.0 * (d[:, None] - self.centers) ** 2)
        envelope = 0.5 * (torch.cos(d * math.pi / cutoff) + 1.0)[:, None]
        h = self.embedding(z)
        for interaction in self.interactions:
            h = interaction(h, rbf, envelope, src, dst)
        return self.readout(h).view(n_molecules, -1).sum(1)


def batched_graph(n_molecules):
    shift = torch.arange(n_molecules)[:, None] * n_atoms
    return z.repeat(n_molecules), (src + shift).flatten(), (dst + shift).flatten()


model = SchNet()
optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
zb, srcb, dstb = batched_graph(batch_size)

seen = 0
for epoch in range(1):
    totals = torch.zeros(2)
    for idx in torch.randperm(len(R)).split(batch_size):
        pos = R[idx].view(-1, 3).requires_grad_()
        energy = model(zb, pos, srcb, dstb, len(idx))
        force = -torch.autograd.grad(energy.sum(), pos, create_graph=True)[0]
        loss_e = (energy - E[idx]).pow(2).mean()
        loss_f = (force - F[idx].view(-1, 3)).pow(2).mean()
        loss = (1 - rho) * loss_e + rho * loss_f
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        totals += torch.stack([loss_e.detach(), loss_f.detach()])
        seen += len(idx)
    energy_mse, force_mse = (totals / (len(R) / batch_size)).tolist()
    print(f'epoch {epoch}: energy rmse {energy_mse ** 0.5:.4f}, force rmse {force_mse ** 0.5:.4f}')
"""

CHANGES = (
    Change(
        "pairs as a dense axis, without gather and index_add",
        "other",
        edits={
            "        messages = self.lin1(h)[src] * w\n        total = torch.zeros_like(h).index_add(0, dst, messages)\n": ""
            "        h3 = self.lin1(h).view(-1, n_atoms, hidden)\n"
            "        w = w.view(-1, n_atoms, n_atoms, hidden)\n"
            "        total = (h3[:, :, None] * w).sum(1).view_as(h)\n",
            "        d = (pos[src] - pos[dst]).pow(2).sum(-1).sqrt()\n": ""
            "        pos = pos.view(n_molecules, n_atoms, 3)\n"
            "        same = torch.eye(n_atoms)\n"
            "        d = ((pos[:, :, None] - pos[:, None]).pow(2).sum(-1) + same).sqrt().flatten()\n",
            "        envelope = 0.5 * (torch.cos(d * math.pi / cutoff) + 1.0)[:, None]\n": ""
            "        envelope = 0.5 * (torch.cos(d * math.pi / cutoff) + 1.0)\n"
            "        envelope = (envelope * (1 - same).flatten().repeat(n_molecules))[:, None]\n",
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        energy = model(zb, pos, srcb, dstb, len(idx))\n": ""
            "        with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "            energy = model(zb, pos, srcb, dstb, len(idx))\n        energy = energy.float()\n",
            "torch.zeros_like(h).index_add(0, dst, messages)": "torch.zeros_like(messages[:len(h)]).index_add(0, dst, messages)",
        },
    ),
    Change("batches of 80", "larger_batch", edits={"batch_size, lr, rho = 20,": "batch_size, lr, rho = 80,"}),
    Change(
        "one thread", "threads", edits={"torch.manual_seed(0)\n": "torch.manual_seed(0)\ntorch.set_num_threads(1)\n"}
    ),
    Change(
        "no running totals, no scheduler per step",
        "fewer_logs",
        edits={
            "        scheduler.step()\n        totals += torch.stack([loss_e.detach(), loss_f.detach()])\n": "",
            "    energy_mse, force_mse = (totals / (len(R) / batch_size)).tolist()\n": ""
            "    scheduler.step()\n    energy_mse, force_mse = loss_e.item(), loss_f.item()\n",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", seconds=10)
