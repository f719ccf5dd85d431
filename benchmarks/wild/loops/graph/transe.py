"""TransE with negatives that every item draws, dense gradients and entities normalized in every forward pass."""

import random

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Triples of a knowledge graph of the size of WN18RR, in the text file of such data sets."""
    random.seed(0)
    count = scaled(48000, scale, 1024)
    lines = (f"{random.randrange(40943)}\t{random.randrange(11)}\t{random.randrange(40943)}" for _ in range(count))
    with open("train.txt", "w") as stream:  # noqa: PTH123
        stream.write("\n".join(lines) + "\n")
    return {}


CELL = """
import random
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

N_ENTITIES, N_RELATIONS, DIM, MARGIN, BATCH_SIZE = 40943, 11, 50, 1.0, 256

class TripleDataset(Dataset):
    def __init__(self, path):
        with open(path) as f:
            self.triples = [tuple(int(v) for v in line.split('\\t')) for line in f]
        self.known = set(self.triples)

    def __len__(self):
        return len(self.triples)

    def __getitem__(self, index):
        h, r, t = self.triples[index]
        while True:
            e = random.randint(0, N_ENTITIES - 1)
            negative = (e, r, t) if random.random() < 0.5 else (h, r, e)
            if negative not in self.known:
                break
        return torch.tensor([h, r, t]), torch.tensor(negative)

class TransE(nn.Module):
    def __init__(self):
        super().__init__()
        self.entities = nn.Embedding(N_ENTITIES, DIM)
        self.relations = nn.Embedding(N_RELATIONS, DIM)
        bound = 6 / DIM ** 0.5
        nn.init.uniform_(self.entities.weight, -bound, bound)
        nn.init.uniform_(self.relations.weight, -bound, bound)
        self.relations.weight.data.div_(self.relations.weight.data.norm(p=1, dim=1, keepdim=True))

    def distance(self, triples):
        h, r, t = triples[:, 0], triples[:, 1], triples[:, 2]
        return (self.entities(h) + self.relations(r) - self.entities(t)).norm(p=1, dim=1)

    def forward(self, positive, negative):
        self.entities.weight.data.div_(self.entities.weight.data.norm(p=2, dim=1, keepdim=True))
        pos, neg = self.distance(positive), self.distance(negative)
        return F.margin_ranking_loss(neg, pos, torch.ones_like(pos), margin=MARGIN), pos, neg

device = torch.device('cuda') if torch.cuda.is_available() else torch.device('cpu')
train_set = TripleDataset('train.txt')
train_loader = DataLoader(train_set, batch_size=BATCH_SIZE, shuffle=True)
model = TransE().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

n_triples = 0
for epoch in range(3):
    model.train()
    total_loss, impacted = 0.0, 0
    for positive, negative in train_loader:
        positive, negative = positive.to(device), negative.to(device)
        optimizer.zero_grad()
        loss, pos, neg = model(positive, negative)
        loss.backward()
        optimizer.step()
        total_loss += loss.item()
        impacted += (neg - pos < MARGIN).sum().item()
        n_triples += positive.size(0)
    print(f'epoch {epoch}: loss {total_loss / len(train_loader):.4f}, impacted triples {impacted}')
"""

CHANGES = (
    Change(
        "sparse gradients",
        "sparse_gradients",
        edits={"nn.Embedding(N_ENTITIES, DIM)": "nn.Embedding(N_ENTITIES, DIM, sparse=True)"},
    ),
    Change(
        "normalize only the rows of the batch",
        "other",
        edits={
            "        self.entities.weight.data.div_(self.entities.weight.data.norm(p=2, dim=1, keepdim=True))\n": ""
            "        rows = torch.cat([positive[:, 0], positive[:, 2], negative[:, 0], negative[:, 2]]).unique()\n"
            "        self.entities.weight.data[rows] = F.normalize(self.entities.weight.data[rows])\n",
            "n_triples = 0\n": "n_triples = 0\nmodel.entities.weight.data = F.normalize(model.entities.weight.data)\n",
        },
    ),
    Change(
        "corrupt whole batches",
        "batch_whole",
        edits={
            """        h, r, t = self.triples[index]
        while True:
            e = random.randint(0, N_ENTITIES - 1)
            negative = (e, r, t) if random.random() < 0.5 else (h, r, e)
            if negative not in self.known:
                break
        return torch.tensor([h, r, t]), torch.tensor(negative)
""": """        positive = self.tensor[index]
        negative = positive.clone()
        head, bad = torch.rand(len(positive)) < 0.5, torch.arange(len(positive))
        while len(bad) > 0:
            column = torch.where(head[bad], 0, 2)
            negative[bad, column] = torch.randint(0, N_ENTITIES, (len(bad),))
            code = (negative[bad, 0] * N_RELATIONS + negative[bad, 1]) * N_ENTITIES + negative[bad, 2]
            place = torch.searchsorted(self.codes, code).clamp(max=len(self.codes) - 1)
            bad = bad[self.codes[place] == code]
        return positive, negative
""",
            "        self.known = set(self.triples)\n": "        self.tensor = torch.tensor(self.triples)\n"
            "        h, r, t = self.tensor.T\n"
            "        self.codes = ((h * N_RELATIONS + r) * N_ENTITIES + t).sort().values\n",
            "DataLoader(train_set, batch_size=BATCH_SIZE, shuffle=True)": "DataLoader(train_set, batch_size=None, "
            "sampler=torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(train_set), BATCH_SIZE, False))",
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("batches of 1024", "larger_batch", edits={"1.0, 256": "1.0, 1024"}),
    Change("fused SGD", "fused_optimizer", edits={"lr=0.01)": "lr=0.01, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_triples", seconds=6)
