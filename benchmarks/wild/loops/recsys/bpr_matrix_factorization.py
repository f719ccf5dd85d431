"""Matrix factorization with a BPR loss; every item draws its negative, and the test runs over rows, as in BPR-pytorch."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A CSV of ratings of 2000 items, of which some are much more popular than others."""
    rng = np.random.default_rng(0)
    popularity = 1 / np.arange(10, 2010)
    users = scaled(1600, scale)
    rows = [
        (user, item)
        for user in range(users)
        for item in rng.choice(2000, rng.integers(20, 80), replace=False, p=popularity / popularity.sum())
    ]
    pd.DataFrame(rows, columns=["user", "item"]).to_csv("ratings.csv", index=False)
    return {}


CELL = """
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

df = pd.read_csv('ratings.csv')
num_users, num_items = df['user'].max() + 1, 2000
test_df = df.groupby('user').tail(1)
train_df = df.drop(test_df.index)
user_items = train_df.groupby('user')['item'].apply(set).to_dict()

class BPRDataset(Dataset):
    def __init__(self, df, user_items):
        self.pairs = df[['user', 'item']].values.tolist()
        self.user_items = user_items

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, idx):
        user, item_i = self.pairs[idx]
        item_j = np.random.randint(num_items)
        while item_j in self.user_items[user]:
            item_j = np.random.randint(num_items)
        return user, item_i, item_j

class BPR(nn.Module):
    def __init__(self, num_users, num_items, factor_num):
        super().__init__()
        self.embed_user = nn.Embedding(num_users, factor_num)
        self.embed_item = nn.Embedding(num_items, factor_num)
        nn.init.normal_(self.embed_user.weight, std=0.01)
        nn.init.normal_(self.embed_item.weight, std=0.01)

    def forward(self, user, item_i, item_j):
        user, item_i, item_j = self.embed_user(user), self.embed_item(item_i), self.embed_item(item_j)
        return (user * item_i).sum(dim=-1), (user * item_j).sum(dim=-1)

rng = np.random.RandomState(1)
test_rows = []
for user, gt_item in test_df[['user', 'item']].values[::4].tolist():
    test_rows.append((user, gt_item))
    test_rows += [(user, j) for j in rng.randint(0, num_items, 99).tolist()]
train_loader = DataLoader(BPRDataset(train_df, user_items), batch_size=256, shuffle=True, num_workers=0)
test_loader = DataLoader(test_rows, batch_size=100, shuffle=False, num_workers=0)
model = BPR(num_users, num_items, 32)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

def metrics(model, test_loader, top_k=10):
    HR, NDCG = [], []
    for user, item in test_loader:
        prediction, _ = model(user, item, item)
        _, indices = torch.topk(prediction, top_k)
        recommends = torch.take(item, indices).cpu().numpy().tolist()
        gt_item = item[0].item()
        HR.append(int(gt_item in recommends))
        NDCG.append(1 / np.log2(recommends.index(gt_item) + 2) if gt_item in recommends else 0)
    return np.mean(HR), np.mean(NDCG)

seen = 0
for epoch in range(15):
    model.train()
    for user, item_i, item_j in train_loader:
        model.zero_grad()
        prediction_i, prediction_j = model(user, item_i, item_j)
        loss = -(prediction_i - prediction_j).sigmoid().log().sum()
        loss.backward()
        optimizer.step()
        seen += len(user)
    model.eval()
    HR, NDCG = metrics(model, test_loader)
    print('Epoch {:03d} HR: {:.3f} NDCG: {:.3f}'.format(epoch, HR, NDCG))
"""

CHANGES = (
    Change(
        "negatives of a whole batch at once",
        "batch_whole",
        edits={
            "        self.pairs = df[['user', 'item']].values.tolist()\n        self.user_items = user_items\n": """        self.pairs = df[['user', 'item']].values
        self.known = np.zeros((num_users, num_items), dtype=bool)
        self.known[self.pairs[:, 0], self.pairs[:, 1]] = True
""",
            """    def __getitem__(self, idx):
        user, item_i = self.pairs[idx]
        item_j = np.random.randint(num_items)
        while item_j in self.user_items[user]:
            item_j = np.random.randint(num_items)
        return user, item_i, item_j
""": """    def __getitems__(self, idx):
        user, item_i = self.pairs[idx].T
        item_j = np.random.randint(num_items, size=len(idx))
        while (wrong := self.known[user, item_j]).any():
            item_j[wrong] = np.random.randint(num_items, size=wrong.sum())
        return torch.from_numpy(user), torch.from_numpy(item_i), torch.from_numpy(item_j)
""",
            "batch_size=256, shuffle=True, num_workers=0": "batch_size=256, shuffle=True, num_workers=0, collate_fn=lambda batch: batch",
        },
    ),
    Change(
        "test rows as a tensor",
        "cache_items",
        edits={
            "test_loader = DataLoader(test_rows, batch_size=100, shuffle=False, num_workers=0)": "test_loader = [rows.unbind(1) for rows in torch.tensor(test_rows).split(100)]"
        },
    ),
    Change(
        "test after the last epoch",
        "eval_less_often",
        edits={
            "    HR, NDCG = metrics(model, test_loader)\n": "    HR, NDCG = metrics(model, test_loader) if epoch == 14 else (0, 0)\n"
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True, num_workers=0": "shuffle=True, num_workers=2"}),
    Change("batches of 1024", "larger_batch", edits={"batch_size=256": "batch_size=1024"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", seconds=6)
