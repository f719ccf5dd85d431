"""A recommender that saves model and optimizer every few steps and keeps the last checkpoints, for machines that vanish."""

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Clicks of users on items."""
    count = scaled(204_800, scale, 1024)
    return {"users": torch.randint(0, 20_000, (count,)), "items": torch.randint(0, 10_000, (count,))}


CELL = """
import glob, os
import torch
import torch.nn as nn

class NeuMF(nn.Module):
    def __init__(self, n_users=20000, n_items=10000, dim=32):
        super().__init__()
        self.user_gmf, self.item_gmf = nn.Embedding(n_users, dim), nn.Embedding(n_items, dim)
        self.user_mlp, self.item_mlp = nn.Embedding(n_users, dim), nn.Embedding(n_items, dim)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.out = nn.Linear(32 + dim, 1)

    def forward(self, u, i):
        gmf = self.user_gmf(u) * self.item_gmf(i)
        mlp = self.mlp(torch.cat([self.user_mlp(u), self.item_mlp(i)], dim=1))
        return self.out(torch.cat([gmf, mlp], dim=1)).squeeze(1)

def save_checkpoint(step, keep=2):
    path = f'checkpoints/step_{step:06d}.pt'
    torch.save({'step': step, 'model': model.state_dict(), 'optimizer': optimizer.state_dict(),
                'rng': torch.get_rng_state()}, path)
    for old in sorted(glob.glob('checkpoints/*.pt'))[:-keep]:
        os.remove(old)

os.makedirs('checkpoints', exist_ok=True)
model = NeuMF()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
batch_size, save_every, interactions = 1024, 2, 0
perm = torch.randperm(len(users))
for step, start in enumerate(range(0, len(users), batch_size)):
    idx = perm[start:start + batch_size]
    u, i = users[idx], items[idx]
    neg = torch.randint(0, 10000, i.shape)
    loss = -nn.functional.logsigmoid(model(u, i) - model(u, neg)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    interactions += len(idx)
    if step % save_every == 0:
        save_checkpoint(step)
        print(f'step {step} loss {loss.item():.4f}')
"""

CHANGES = (
    Change("checkpoint every fiftieth step", "fewer_logs", edits={"= 1024, 2, 0": "= 1024, 50, 0"}),
    Change(
        "model only, no optimizer state",
        "storage_format",
        edits={"'model': model.state_dict(), 'optimizer': optimizer.state_dict(),": "'model': model.state_dict(),"},
    ),
    Change("fused SGD", "fused_optimizer", edits={"momentum=0.9)": "momentum=0.9, fused=True)"}),
    Change("one thread", "threads", edits={"model = NeuMF()": "torch.set_num_threads(1)\nmodel = NeuMF()"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="interactions", seconds=6)
