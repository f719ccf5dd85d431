"""Entity embeddings of shops and customers with one large table, in the manner of the Rossmann and fastai notebooks."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A parquet file with categorical columns; two of them have many values."""
    rng = np.random.default_rng(0)
    count = scaled(38_400, scale, 512)
    sizes = {"customer": 60_000, "item": 30_000, "store": 1115, "day": 7, "month": 12, "state": 12, "promo": 2}
    frame = pd.DataFrame({name: rng.integers(0, size, count) for name, size in sizes.items()})
    for name in ("distance", "temperature", "wind", "price"):
        frame[name] = rng.normal(size=count).astype(np.float32)
    frame["sales"] = rng.gamma(2.0, 1.0, count).astype(np.float32)
    frame.to_parquet("sales.parquet")
    return {"sizes": sizes}


CELL = """
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import TensorDataset, DataLoader

df = pd.read_parquet('sales.parquet')
cat_names = list(sizes)
cont_names = ['distance', 'temperature', 'wind', 'price']

class MixedInputModel(nn.Module):
    def __init__(self, emb_szs, n_cont, layers=(200, 100), p=0.1):
        super().__init__()
        self.embs = nn.ModuleList([nn.Embedding(c, s) for c, s in emb_szs])
        n_emb = sum(e.embedding_dim for e in self.embs)
        self.bn = nn.BatchNorm1d(n_cont)
        szs = [n_emb + n_cont, *layers]
        self.lins = nn.ModuleList([nn.Linear(a, b) for a, b in zip(szs, szs[1:])])
        self.bns = nn.ModuleList([nn.BatchNorm1d(b) for b in layers])
        self.drop = nn.Dropout(p)
        self.outp = nn.Linear(layers[-1], 1)

    def forward(self, x_cat, x_cont):
        x = [e(x_cat[:, i]) for i, e in enumerate(self.embs)]
        x = torch.cat([self.drop(torch.cat(x, 1)), self.bn(x_cont)], 1)
        for lin, bn in zip(self.lins, self.bns):
            x = self.drop(bn(torch.relu(lin(x))))
        return self.outp(x).squeeze(1)

train_ds = TensorDataset(torch.tensor(df[cat_names].values), torch.tensor(df[cont_names].values),
                         torch.log1p(torch.tensor(df['sales'].values)))
train_dl = DataLoader(train_ds, batch_size=512, shuffle=True)

emb_szs = [(sizes[c], min(50, (sizes[c] + 1) // 2)) for c in cat_names]
model = MixedInputModel(emb_szs, len(cont_names))
opt = torch.optim.Adam(model.parameters(), lr=1e-3)

rows = 0
for epoch in range(1):
    model.train()
    total, sum_loss = 0, 0
    for x_cat, x_cont, y in train_dl:
        output = model(x_cat, x_cont)
        loss = nn.functional.mse_loss(output, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += len(y)
        sum_loss += len(y) * loss.item()
    rows += total
    print('training loss', sum_loss / total)
"""

CHANGES = (
    Change(
        "sparse gradients",
        "sparse_gradients",
        edits={
            "nn.Embedding(c, s) for c, s in emb_szs])": "nn.Embedding(c, s, sparse=c > 10000) for c, s in emb_szs])",
            "opt = torch.optim.Adam(model.parameters(), lr=1e-3)\n": """
big = [e.weight for e in model.embs if e.sparse]
small = [p for p in model.parameters() if not any(p is q for q in big)]

class Both:
    def __init__(self, *opts):
        self.opts = opts

    def zero_grad(self):
        for o in self.opts:
            o.zero_grad()

    def step(self):
        # one step of both; the second does not count as another
        for o in self.opts:
            o.step()

opt = Both(torch.optim.SparseAdam(big, lr=1e-3), torch.optim.Adam(small, lr=1e-3))
""",
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
    Change(
        "index whole batches",
        "batch_whole",
        edits={
            "train_dl = DataLoader(train_ds, batch_size=512, shuffle=True)": "sampler = torch.utils.data.BatchSampler("
            "torch.utils.data.RandomSampler(train_ds), 512, False)\n"
            "train_dl = DataLoader(train_ds, sampler=sampler, batch_size=None)"
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="rows", same_steps=False, seconds=5)
