"""A StatefulDataLoader of torchdata with workers that snapshot after every step, so that training can resume mid-epoch."""

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Recommendation events as Python tuples: user, item, history, rating."""
    count = scaled(28_800, scale, 64)
    history = torch.randint(0, 2000, (count, 20)).tolist()
    users, items = torch.randint(0, 1000, (count,)).tolist(), torch.randint(0, 2000, (count,)).tolist()
    ratings = torch.rand(count).tolist()
    return {"events": list(zip(users, items, history, ratings, strict=True))}


CELL = """
import torch
from torch import nn
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

class Events(Dataset):
    def __len__(self):
        return len(events)

    def __getitem__(self, i):
        user, item, history, rating = events[i]
        return {'user': torch.tensor(user), 'item': torch.tensor(item), 'history': torch.tensor(history),
                'rating': torch.tensor(rating)}

class Recommender(nn.Module):
    def __init__(self, users=1000, items=2000, dim=32):
        super().__init__()
        self.user, self.item = nn.Embedding(users, dim), nn.Embedding(items, dim)
        self.mlp = nn.Sequential(nn.Linear(3 * dim, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, batch):
        x = torch.cat([self.user(batch['user']), self.item(batch['item']), self.item(batch['history']).mean(1)], 1)
        return self.mlp(x).squeeze(1)

dataloader = StatefulDataLoader(Events(), batch_size=64, shuffle=True, num_workers=2, snapshot_every_n_steps=1)
model = Recommender()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
checkpoint_every, n_events = 1, 0
for step, batch in enumerate(dataloader):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(batch), batch['rating'])
    loss.backward()
    optimizer.step()
    n_events += len(batch['rating'])
    if step % checkpoint_every == 0:
        torch.save({'step': step, 'model': model.state_dict(), 'loader': dataloader.state_dict()}, 'last.pt')
"""

CHANGES = (
    Change(
        "checkpoint every fiftieth step",
        "fewer_logs",
        edits={"checkpoint_every, n_events = 1": "checkpoint_every, n_events = 50"},
    ),
    Change("snapshot every fiftieth step", "other", edits={"snapshot_every_n_steps=1": "snapshot_every_n_steps=50"}),
    Change("no workers", "num_workers", edits={"num_workers=2": "num_workers=0"}),
    Change(
        "collate the tuples at once",
        "batch_whole",
        edits={
            """        user, item, history, rating = events[i]
        return {'user': torch.tensor(user), 'item': torch.tensor(item), 'history': torch.tensor(history),
                'rating': torch.tensor(rating)}
""": """        return events[i]

def collate(rows):
    names = ('user', 'item', 'history', 'rating')
    return {name: torch.tensor(column) for name, column in zip(names, zip(*rows))}
""",
            "shuffle=True,": "shuffle=True, collate_fn=collate,",
        },
    ),
    Change("one thread", "threads", edits={"model = Recommender()": "torch.set_num_threads(1)\nmodel = Recommender()"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_events", seconds=6)
