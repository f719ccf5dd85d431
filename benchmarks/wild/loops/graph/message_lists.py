"""Message passing written node by node over neighbour lists, as in GraphSAGE exercises and small research repositories."""

import random

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A graph as a dict of neighbour lists, as networkx gives it."""
    nodes = 3000
    neighbours: dict[int, list[int]] = {node: [node] for node in range(nodes)}
    for _ in range(20_000):
        a, b = random.randrange(nodes), random.randrange(nodes)
        neighbours[a].append(b)
        neighbours[b].append(a)
    return {"adj_lists": neighbours, "num_nodes": nodes, "num_batches": scaled(400, scale)}


CELL = """
import random
import torch
import torch.nn as nn
import torch.nn.functional as F

features = nn.Embedding(num_nodes, 64)
features.weight = nn.Parameter(torch.randn(num_nodes, 64), requires_grad=False)
labels = torch.randint(0, 7, (num_nodes,))

class MeanAggregator(nn.Module):
    def forward(self, nodes, neighs, feats):
        out = []
        for node in nodes:
            messages = [feats(n) for n in neighs[node]]
            out.append(torch.stack(messages).mean(0))
        return torch.stack(out)

class Encoder(nn.Module):
    def __init__(self, embed_dim):
        super().__init__()
        self.aggregator = MeanAggregator()
        self.lin = nn.Linear(128, embed_dim)

    def forward(self, nodes):
        table = features.weight
        neigh = self.aggregator(nodes, adj_lists, lambda n: table[n])
        self_feats = torch.stack([table[n] for n in nodes])
        return F.relu(self.lin(torch.cat([self_feats, neigh], dim=1)))

class SupervisedGraphSage(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.enc = Encoder(128)
        self.out = nn.Linear(128, num_classes)

    def forward(self, nodes):
        return self.out(self.enc(nodes))

graphsage = SupervisedGraphSage(7)
optimizer = torch.optim.SGD(graphsage.parameters(), lr=0.7)
xent = nn.CrossEntropyLoss()
train = list(range(num_nodes))
seen = 0
for batch in range(num_batches):
    batch_nodes = train[:256]
    random.shuffle(train)
    optimizer.zero_grad()
    scores = graphsage(batch_nodes)
    loss = xent(scores, labels[torch.tensor(batch_nodes)])
    loss.backward()
    optimizer.step()
    seen += len(batch_nodes)
    if batch % 10 == 0:
        print(batch, loss.item())
"""

CHANGES = (
    Change(
        "gather and index_add",
        "remove_python",
        edits={
            """        out = []
        for node in nodes:
            messages = [feats(n) for n in neighs[node]]
            out.append(torch.stack(messages).mean(0))
        return torch.stack(out)
""": """        counts = torch.tensor([len(neighs[node]) for node in nodes])
        sources = torch.tensor([n for node in nodes for n in neighs[node]])
        rows = torch.repeat_interleave(torch.arange(len(nodes)), counts)
        messages = feats(sources)
        return torch.zeros(len(nodes), messages.shape[1]).index_add_(0, rows, messages) / counts[:, None]
"""
        },
    ),
    Change(
        "index neighbours of a node at once",
        "vectorize_items",
        edits={
            "            messages = [feats(n) for n in neighs[node]]\n": "",
            "torch.stack(messages).mean(0)": "feats(neighs[node]).mean(0)",
        },
    ),
    Change("one thread", "threads", edits={"xent = nn": "torch.set_num_threads(1)\nxent = nn"}),
    Change("fused SGD", "fused_optimizer", edits={"lr=0.7)": "lr=0.7, fused=True)"}),
    Change("collector off", "gc", edits={"import random\n": "import random, gc\ngc.disable()\n"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", seconds=5)
