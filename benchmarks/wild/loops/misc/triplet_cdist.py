"""Metric learning with cdist and hard triplets that Python mines anchor by anchor, as in re-identification repositories."""

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Embeddings of a frozen backbone, sixteen per identity."""
    count = scaled(9600, scale, 64)
    return {"features": torch.randn(count, 256), "identities": torch.arange(count) // 16}


CELL = """
import random
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, Sampler

class Features(Dataset):
    def __len__(self):
        return len(features)

    def __getitem__(self, i):
        return features[i], identities[i]

class PKSampler(Sampler):
    def __init__(self, p=16, k=4):
        self.p, self.k, self.n = p, k, len(identities)

    def __iter__(self):
        groups = {}
        for i, pid in enumerate(identities.tolist()):
            groups.setdefault(pid, []).append(i)
        for _ in range(len(self)):
            pids = random.choices(list(groups), k=self.p)
            yield [i for pid in pids for i in random.sample(groups[pid], self.k)]

    def __len__(self):
        return self.n // (self.p * self.k)

class TripletLoss(nn.Module):
    def __init__(self, margin=0.3):
        super().__init__()
        self.ranking_loss = nn.MarginRankingLoss(margin=margin)

    def forward(self, inputs, targets):
        n = inputs.size(0)
        dist = torch.cdist(inputs, inputs)
        mask = targets.expand(n, n).eq(targets.expand(n, n).t())
        dist_ap, dist_an = [], []
        for i in range(n):
            dist_ap.append(dist[i][mask[i]].max().unsqueeze(0))
            dist_an.append(dist[i][mask[i] == 0].min().unsqueeze(0))
        dist_ap = torch.cat(dist_ap)
        dist_an = torch.cat(dist_an)
        y = torch.ones_like(dist_an)
        return self.ranking_loss(dist_an, dist_ap, y)

loader = DataLoader(Features(), batch_sampler=PKSampler(), num_workers=0)
head = nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 64))
criterion = TripletLoss()
optimizer = torch.optim.Adam(head.parameters(), lr=3.5e-4, weight_decay=5e-4)

anchors = 0
for epoch in range(3):
    for step, (x, pid) in enumerate(loader):
        emb = nn.functional.normalize(head(x))
        loss = criterion(emb, pid)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        anchors += len(x)
    print(f'Epoch {epoch} loss {loss.item():.4f}')
"""

CHANGES = (
    Change(
        "mine with masks",
        "remove_python",
        edits={
            """        dist_ap, dist_an = [], []
        for i in range(n):
            dist_ap.append(dist[i][mask[i]].max().unsqueeze(0))
            dist_an.append(dist[i][mask[i] == 0].min().unsqueeze(0))
        dist_ap = torch.cat(dist_ap)
        dist_an = torch.cat(dist_an)
""": """        dist_ap = dist.masked_fill(~mask, 0).max(1).values
        dist_an = dist.masked_fill(mask, float('inf')).min(1).values
"""
        },
    ),
    Change("two workers", "num_workers", edits={"num_workers=0": "num_workers=2"}),
    Change(
        "index whole batches",
        "batch_whole",
        edits={"batch_sampler=PKSampler(), num_workers=0": "sampler=PKSampler(), batch_size=None, num_workers=0"},
    ),
    Change("fused Adam", "fused_optimizer", edits={"weight_decay=5e-4)": "weight_decay=5e-4, fused=True)"}),
    Change("one thread", "threads", edits={"anchors = 0\n": "anchors = 0\ntorch.set_num_threads(1)\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="anchors", seconds=6)
