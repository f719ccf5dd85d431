"""GraphSAGE on mini-batches whose neighbours are sampled from a dictionary of sets in Python."""

import random

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A citation graph as a list of edges; every node has features and a label."""
    nodes = 6000
    edges = [(random.randrange(nodes), int(nodes * random.random() ** 2)) for _ in range(36_000)]
    return {
        "edges": edges,
        "features": np.random.rand(nodes, 128).astype(np.float32),
        "labels": np.random.randint(0, 7, nodes),
        "train_nodes": random.sample(range(nodes), scaled(5120, scale, 128)),
    }


CELL = """
import random, time
from collections import defaultdict
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

adj_lists = defaultdict(set)
for a, b in edges:
    adj_lists[a].add(b)
    adj_lists[b].add(a)
for n in range(len(features)):
    if not adj_lists[n]:
        adj_lists[n].add(n)

feat_table = nn.Embedding(len(features), features.shape[1])
feat_table.weight = nn.Parameter(torch.FloatTensor(features), requires_grad=False)

class MeanAggregator(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.features = features

    def forward(self, nodes, to_neighs, num_sample=10):
        samp_neighs = [set(random.sample(sorted(to_neigh), num_sample)) if len(to_neigh) >= num_sample else to_neigh
                       for to_neigh in to_neighs]
        samp_neighs = [samp_neigh | {nodes[i]} for i, samp_neigh in enumerate(samp_neighs)]
        unique_nodes_list = list(set.union(*samp_neighs))
        unique_nodes = {n: i for i, n in enumerate(unique_nodes_list)}
        mask = torch.zeros(len(samp_neighs), len(unique_nodes))
        column_indices = [unique_nodes[n] for samp_neigh in samp_neighs for n in samp_neigh]
        row_indices = [i for i in range(len(samp_neighs)) for j in range(len(samp_neighs[i]))]
        mask[row_indices, column_indices] = 1
        mask = mask.div(mask.sum(1, keepdim=True))
        return mask.mm(self.features(unique_nodes_list))

class Encoder(nn.Module):
    def __init__(self, features, feature_dim, embed_dim, aggregator, num_sample):
        super().__init__()
        self.features, self.aggregator, self.num_sample = features, aggregator, num_sample
        self.weight = nn.Parameter(torch.empty(embed_dim, 2 * feature_dim))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, nodes):
        neigh_feats = self.aggregator(nodes, [adj_lists[int(node)] for node in nodes], self.num_sample)
        self_feats = self.features(nodes)
        return F.relu(F.linear(torch.cat([self_feats, neigh_feats], dim=1), self.weight))

raw = lambda nodes: feat_table(torch.LongTensor(nodes))
enc1 = Encoder(raw, 128, 64, MeanAggregator(raw), 10)
enc2 = Encoder(enc1, 64, 64, MeanAggregator(enc1), 5)

class SupervisedGraphSage(nn.Module):
    def __init__(self, num_classes, enc):
        super().__init__()
        self.enc = enc
        self.weight = nn.Parameter(torch.empty(num_classes, 64))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, nodes):
        return F.linear(self.enc(nodes), self.weight)

graphsage = SupervisedGraphSage(7, enc2)
enc1_params, enc2_params = [enc1.weight], [enc2.weight]
optimizer = torch.optim.SGD([{'params': [graphsage.weight]}, {'params': enc1_params}, {'params': enc2_params}], lr=0.1)

times, nodes_trained = [], 0
for epoch in range(6):
    random.shuffle(train_nodes)
    for start in range(0, len(train_nodes), 128):
        batch_nodes = train_nodes[start:start + 128]
        start_time = time.time()
        optimizer.zero_grad()
        scores = graphsage(batch_nodes)
        loss = F.cross_entropy(scores, torch.LongTensor(labels[np.array(batch_nodes)]))
        loss.backward()
        optimizer.step()
        nodes_trained += len(batch_nodes)
        times.append(time.time() - start_time)
        if start % 1280 == 0:
            print(epoch, start, loss.item())
print('average batch time:', np.mean(times))
"""

AGGREGATE = CELL[CELL.index("        samp_neighs = [set(") : CELL.index("class Encoder")]

CHANGES = (
    Change(
        "sample from padded arrays",
        "remove_python",
        edits={
            AGGREGATE: """        table = neighbour_table[nodes]
        columns = (torch.rand(len(nodes), num_sample) * degree[nodes][:, None]).long()
        picked = torch.cat([table.gather(1, columns), torch.as_tensor(nodes)[:, None]], dim=1)
        unique, inverse = picked.unique(return_inverse=True)
        return self.features(unique)[inverse].mean(1)

""",
            "class MeanAggregator": """degree = torch.tensor([len(adj_lists[n]) for n in range(len(features))])
neighbour_table = torch.zeros(len(features), int(degree.max()), dtype=torch.long)
for n in range(len(features)):
    neighbour_table[n, :degree[n]] = torch.tensor(list(adj_lists[n]))

class MeanAggregator""",
            "[adj_lists[int(node)] for node in nodes]": "None",
            "feat_table(torch.LongTensor(nodes))": "feat_table(torch.as_tensor(nodes))",
        },
    ),
    Change(
        "neighbours as sorted tuples",
        "cache_items",
        edits={
            "feat_table = nn.Embedding": "adj_sorted = {n: sorted(neigh) for n, neigh in adj_lists.items()}\n\nfeat_table = nn.Embedding",
            "random.sample(sorted(to_neigh), num_sample)": "random.sample(to_neigh, num_sample)",
            "else to_neigh\n": "else set(to_neigh)\n",
            "[adj_lists[int(node)] for node in nodes]": "[adj_sorted[int(node)] for node in nodes]",
        },
    ),
    Change(
        "gather and index_add instead of a dense mask",
        "other",
        edits={
            AGGREGATE[AGGREGATE.index("        mask = torch.zeros") : AGGREGATE.index("        column_indices")]: "",
            AGGREGATE[AGGREGATE.index("        mask[row_indices") :]: """        rows = torch.tensor(row_indices)
        picked = self.features(unique_nodes_list)[torch.tensor(column_indices)]
        total = torch.zeros(len(samp_neighs), picked.size(1)).index_add(0, rows, picked)
        return total / torch.bincount(rows)[:, None]

""",
        },
    ),
    Change("foreach SGD", "foreach_optimizer", edits={"], lr=0.1)": "], lr=0.1, foreach=True)"}),
    Change("collector off", "gc", edits={"import random, time": "import gc, random, time\ngc.disable()"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="nodes_trained", seconds=5)
