"""LightGCN with the BPR loss; the normalized graph is built from the DataFrame in every forward pass."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A CSV of implicit feedback, users and items with long tails."""
    rng = np.random.default_rng(0)
    users = (3000 * rng.random(60_000) ** 1.5).astype(int)
    items = (4000 * rng.random(60_000) ** 2).astype(int)
    frame = pd.DataFrame({"user_id": users, "item_id": items}).drop_duplicates()
    frame.to_csv("interactions.csv", index=False)
    return {"n_batch": scaled(80, scale)}


CELL = """
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F

train = pd.read_csv('interactions.csv')
n_users, n_items = train['user_id'].max() + 1, train['item_id'].max() + 1
BATCH_SIZE, latent_dim, n_layers, DECAY = 1024, 64, 2, 1e-4

class LightGCN(nn.Module):
    def __init__(self, data, n_users, n_items, n_layers, latent_dim):
        super().__init__()
        self.data, self.n_users, self.n_items, self.n_layers = data, n_users, n_items, n_layers
        self.E0 = nn.Embedding(n_users + n_items, latent_dim)
        nn.init.xavier_uniform_(self.E0.weight)

    def get_A_tilda(self):
        n = self.n_users + self.n_items
        df = self.data.copy()
        df['item_id'] += self.n_users
        edges = pd.concat([df, df.rename(columns={'user_id': 'item_id', 'item_id': 'user_id'})])
        degree = edges.groupby('user_id')['item_id'].count()
        d_u = edges['user_id'].map(degree).values
        d_i = edges['item_id'].map(degree).values
        values = 1.0 / np.sqrt(d_u * d_i)
        index = torch.tensor(edges[['user_id', 'item_id']].values.T)
        return torch.sparse_coo_tensor(index, torch.FloatTensor(values), (n, n)).coalesce()

    def forward(self, users, pos, neg):
        A = self.get_A_tilda()
        all_layers = [self.E0.weight]
        for _ in range(self.n_layers):
            all_layers.append(torch.sparse.mm(A, all_layers[-1]))
        final = torch.stack(all_layers).mean(0)
        user_emb, item_emb = torch.split(final, [self.n_users, self.n_items])
        initial = torch.cat([self.E0(users), self.E0(self.n_users + pos), self.E0(self.n_users + neg)])
        return user_emb[users], item_emb[pos], item_emb[neg], initial

def bpr_loss(u, p, n, initial):
    reg = 0.5 * initial.pow(2).sum() / len(u)
    return F.softplus((u * n).sum(1) - (u * p).sum(1)).mean(), reg

model = LightGCN(train, n_users, n_items, n_layers, latent_dim)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
seen, loss_list = 0, []
for batch_idx in range(n_batch):
    rows = train.sample(BATCH_SIZE)
    users = torch.tensor(rows['user_id'].values)
    pos = torch.tensor(rows['item_id'].values)
    neg = torch.randint(0, n_items, (BATCH_SIZE,))
    optimizer.zero_grad()
    bpr, reg = bpr_loss(*model(users, pos, neg))
    loss = bpr + DECAY * reg
    loss.backward()
    optimizer.step()
    seen += BATCH_SIZE
    loss_list.append(loss.item())
print('BPR loss', np.round(np.mean(loss_list), 4))
"""

CHANGES = (
    Change(
        "build the graph once",
        "remove_python",
        edits={
            "        nn.init.xavier_uniform_(self.E0.weight)\n": "        nn.init.xavier_uniform_(self.E0.weight)\n"
            "        self.register_buffer('A_tilda', self.get_A_tilda())\n",
            "        A = self.get_A_tilda()\n": "        A = self.A_tilda\n",
        },
    ),
    Change(
        "compressed rows",
        "other",
        edits={"torch.FloatTensor(values), (n, n)).coalesce()": "torch.FloatTensor(values), (n, n)).to_sparse_csr()"},
    ),
    Change("losses as tensors", "remove_syncs", edits={"loss_list.append(loss.item())": "loss_list.append(loss.data)"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=0.005)": "lr=0.005, fused=True)"}),
    Change(
        "draw rows from tensors",
        "batch_whole",
        edits={
            "seen, loss_list = 0, []\n": "seen, loss_list = 0, []\npairs = torch.tensor(train.values)\n",
            """    rows = train.sample(BATCH_SIZE)
    users = torch.tensor(rows['user_id'].values)
    pos = torch.tensor(rows['item_id'].values)
""": "    users, pos = pairs[torch.randperm(len(pairs))[:BATCH_SIZE]].unbind(1)\n",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", seconds=6)
