"""DeepWalk: random walks in a networkx graph and a skip-gram model with two embeddings trained by Adam."""

import networkx as nx

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A sparse graph of users, and how many walk batches to train on."""
    return {"G": nx.barabasi_albert_graph(60_000, 3, seed=0), "num_batches": scaled(30, scale, 2)}


CELL = """
import random
import networkx as nx
import torch
import torch.nn as nn
import torch.nn.functional as F

walk_length, window_size, num_negatives, embedding_dim, walks_per_batch = 20, 4, 5, 128, 8
nodes = list(G.nodes())

def random_walk(G, start, length):
    walk = [start]
    while len(walk) < length:
        neighbors = list(G.neighbors(walk[-1]))
        if not neighbors:
            break
        walk.append(random.choice(neighbors))
    return walk

def skipgram_pairs(walk, window):
    pairs = []
    for i, center in enumerate(walk):
        for j in range(max(0, i - window), min(len(walk), i + window + 1)):
            if i != j:
                pairs.append((center, walk[j]))
    return pairs

class SkipGram(nn.Module):
    def __init__(self, num_nodes, dim):
        super().__init__()
        self.emb = nn.Embedding(num_nodes, dim)
        self.ctx = nn.Embedding(num_nodes, dim)
        nn.init.uniform_(self.emb.weight, -0.5 / dim, 0.5 / dim)
        nn.init.zeros_(self.ctx.weight)

    def forward(self, center, context, negatives):
        c = self.emb(center)
        pos = (c * self.ctx(context)).sum(-1)
        neg = torch.bmm(self.ctx(negatives), c.unsqueeze(-1)).squeeze(-1)
        return -(F.logsigmoid(pos) + F.logsigmoid(-neg).sum(-1)).mean()

model = SkipGram(len(nodes), embedding_dim)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

walks_done, total_loss = 0, 0
random.shuffle(nodes)
for step in range(num_batches):
    pairs = []
    for node in nodes[walks_done:walks_done + walks_per_batch]:
        pairs += skipgram_pairs(random_walk(G, node, walk_length), window_size)
        walks_done += 1
    pairs = torch.tensor(pairs)
    negatives = torch.randint(0, len(nodes), (len(pairs), num_negatives))
    optimizer.zero_grad()
    loss = model(pairs[:, 0], pairs[:, 1], negatives)
    loss.backward()
    optimizer.step()
    total_loss += loss.item()
    if (step + 1) % 10 == 0:
        print(f'Step {step + 1:03d}/{num_batches}, Loss: {total_loss / 10:.4f}')
        total_loss = 0
"""

CHANGES = (
    Change(
        "sparse gradients and SparseAdam",
        "sparse_gradients",
        edits={
            "self.emb = nn.Embedding(num_nodes, dim)": "self.emb = nn.Embedding(num_nodes, dim, sparse=True)",
            "self.ctx = nn.Embedding(num_nodes, dim)": "self.ctx = nn.Embedding(num_nodes, dim, sparse=True)",
            "torch.optim.Adam(": "torch.optim.SparseAdam(",
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=0.01)": "lr=0.01, fused=True)"}),
    Change(
        "neighbour lists and pair positions made once",
        "remove_python",
        edits={
            "nodes = list(G.nodes())\n": """nodes = list(G.nodes())
adjacency = [list(G.neighbors(node)) for node in range(len(nodes))]
places = [(i, j) for i in range(walk_length)
          for j in range(max(0, i - window_size), min(walk_length, i + window_size + 1)) if i != j]
left, right = torch.tensor(places).unbind(1)
""",
            "list(G.neighbors(walk[-1]))": "adjacency[walk[-1]]",
            "        pairs += skipgram_pairs(random_walk(G, node, walk_length), window_size)\n": ""
            "        pairs.append(random_walk(G, node, walk_length))\n",
            "    pairs = torch.tensor(pairs)\n": ""
            "    walks = torch.tensor(pairs)\n"
            "    pairs = torch.stack([walks[:, left].flatten(), walks[:, right].flatten()], 1)\n",
        },
    ),
    Change(
        "16 walks per batch",
        "larger_batch",
        edits={
            "embedding_dim, walks_per_batch = 20, 4, 5, 128, 8": "embedding_dim, walks_per_batch = 20, 4, 5, 128, 16",
            "for step in range(num_batches):": "for step in range(num_batches // 2):",
        },
    ),
    Change("loss kept as a tensor", "remove_syncs", edits={"total_loss += loss.item()": "total_loss += loss.detach()"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="walks_done", seconds=6)
