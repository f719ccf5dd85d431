"""Click prediction in the manner of DLRM: large hashed embedding bags, Adam over the whole tables, examples as dictionaries."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A log of impressions: a few numbers, categories, and the list of the last items."""
    count = scaled(30_720, scale, 256)
    log = [
        {
            "dense": np.random.rand(8).tolist(),
            "user": int(user),
            "item": int(item),
            "history": np.random.randint(0, 10**9, np.random.randint(1, 20)).tolist(),
            "click": int(click),
        }
        for user, item, click in zip(
            np.random.randint(0, 10**9, count),
            np.random.randint(0, 10**9, count),
            np.random.rand(count) < 0.1,
            strict=True,
        )
    ]
    return {"log": log}


CELL = """
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

HASH = 60_000
DIM = 16

class ClickLog(Dataset):
    def __init__(self, log):
        self.log = log
    def __len__(self):
        return len(self.log)
    def __getitem__(self, i):
        row = self.log[i]
        return {'dense': torch.tensor(row['dense']).log1p(),
                'user': row['user'] % HASH,
                'item': row['item'] % HASH,
                'history': torch.tensor([h % HASH for h in row['history']]),
                'label': float(row['click'])}

def collate(rows):
    out = {k: torch.tensor([r[k] for r in rows]) for k in ('user', 'item', 'label')}
    out['dense'] = torch.stack([r['dense'] for r in rows])
    lengths = torch.tensor([0] + [len(r['history']) for r in rows[:-1]])
    out['history'], out['offsets'] = torch.cat([r['history'] for r in rows]), lengths.cumsum(0)
    return out

class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(HASH, DIM)
        self.item = nn.Embedding(HASH, DIM)
        self.history = nn.EmbeddingBag(HASH, DIM, mode='mean')
        for table in (self.user, self.item, self.history):
            nn.init.normal_(table.weight, std=0.05)
        self.bottom = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, DIM), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(DIM + 6, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, b):
        d = self.bottom(b['dense'])
        feats = [d, self.user(b['user']), self.item(b['item']), self.history(b['history'], b['offsets'])]
        inter = []
        for i in range(4):
            for j in range(i):
                inter.append((feats[i] * feats[j]).sum(1, keepdim=True))
        return self.top(torch.cat([d] + inter, 1)).squeeze(1)

loader = DataLoader(ClickLog(log), batch_size=64, shuffle=True, collate_fn=collate)
model = DLRM()
tables = [model.user.weight, model.item.weight, model.history.weight]
rest = [*model.bottom.parameters(), *model.top.parameters()]
optimizers = [torch.optim.Adam(tables, lr=1e-3), torch.optim.Adam(rest, lr=1e-3)]
bce = nn.BCEWithLogitsLoss()

impressions, auc_p, auc_n = 0, [], []
for it, batch in enumerate(loader):
    logits = model(batch)
    loss = bce(logits, batch['label'])
    for o in optimizers:
        o.zero_grad()
    loss.backward()
    for o in optimizers:
        o.step()
    impressions += len(logits)
    for p, t in zip(logits.detach().sigmoid(), batch['label']):
        (auc_p if t.item() == 1 else auc_n).append(p.item())
    if it % 50 == 0:
        ne = sum(auc_p) / max(len(auc_p), 1) - sum(auc_n) / max(len(auc_n), 1)
        print(f'iter {it} loss {loss.item():.4f} separation {ne:.4f}')
"""

CHANGES = (
    Change(
        "sparse gradients",
        "sparse_gradients",
        edits={
            "self.user = nn.Embedding(HASH, DIM)": "self.user = nn.Embedding(HASH, DIM, sparse=True)",
            "self.item = nn.Embedding(HASH, DIM)": "self.item = nn.Embedding(HASH, DIM, sparse=True)",
            "mode='mean')": "mode='mean', sparse=True)",
            "torch.optim.Adam(tables, lr=1e-3)": "torch.optim.SparseAdam(tables, lr=1e-3)",
        },
    ),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={"torch.optim.Adam(tables, lr=1e-3)": "torch.optim.Adam(tables, lr=1e-3, fused=True)"},
    ),
    Change("batches of 256", "larger_batch", edits={"batch_size=64": "batch_size=256"}),
    Change(
        "scores by masks",
        "remove_python",
        edits={
            """    for p, t in zip(logits.detach().sigmoid(), batch['label']):
        (auc_p if t.item() == 1 else auc_n).append(p.item())
""": """    scores, clicked = logits.detach().sigmoid(), batch['label'] == 1
    auc_p += scores[clicked].tolist()
    auc_n += scores[~clicked].tolist()
"""
        },
    ),
    Change("two workers", "num_workers", edits={"collate_fn=collate)": "collate_fn=collate, num_workers=2)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="impressions", seconds=6)
