"""A graph convolutional network on a citation graph of Cora's size with a dense adjacency matrix, in the manner of pygcn."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Edges, bag-of-words features and labels as arrays."""
    rng = np.random.default_rng(0)
    nodes, words = 2708, 1433
    features = (rng.random((nodes, words)) < 0.0127).astype(np.float32)
    return {
        "edges": rng.integers(0, nodes, (5429, 2)),
        "features": features,
        "labels": rng.integers(0, 7, nodes),
        "epochs": scaled(200, scale),
    }


CELL = """
import math, time
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

def normalize(mx):
    rowsum = mx.sum(1)
    r_inv = np.power(rowsum, -1, where=rowsum > 0, out=np.zeros_like(rowsum))
    return r_inv[:, None] * mx

adj = np.zeros((len(labels), len(labels)), dtype=np.float32)
adj[edges[:, 0], edges[:, 1]] = 1
adj = np.maximum(adj, adj.T)
adj = torch.FloatTensor(normalize(adj + np.eye(len(labels), dtype=np.float32)))
features = torch.FloatTensor(normalize(features))
labels = torch.LongTensor(labels)
idx_train, idx_val = torch.arange(140), torch.arange(200, 500)

class GraphConvolution(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        nn.init.uniform_(self.weight, -1. / math.sqrt(out_features), 1. / math.sqrt(out_features))

    def forward(self, input, adj):
        support = torch.mm(input, self.weight)
        output = torch.mm(adj, support)
        return output + self.bias

class GCN(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout):
        super().__init__()
        self.gc1 = GraphConvolution(nfeat, nhid)
        self.gc2 = GraphConvolution(nhid, nclass)
        self.dropout = dropout

    def forward(self, x, adj):
        x = F.relu(self.gc1(x, adj))
        x = F.dropout(x, self.dropout, training=self.training)
        return F.log_softmax(self.gc2(x, adj), dim=1)

def accuracy(output, labels):
    return (output.max(1)[1] == labels).double().mean()

model = GCN(features.shape[1], 16, int(labels.max()) + 1, 0.5)
optimizer = optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
fastmode = False

def train(epoch):
    t = time.time()
    model.train()
    optimizer.zero_grad()
    output = model(features, adj)
    loss_train = F.nll_loss(output[idx_train], labels[idx_train])
    acc_train = accuracy(output[idx_train], labels[idx_train])
    loss_train.backward()
    optimizer.step()
    if not fastmode:
        model.eval()
        output = model(features, adj)
    loss_val = F.nll_loss(output[idx_val], labels[idx_val])
    acc_val = accuracy(output[idx_val], labels[idx_val])
    print(f'Epoch: {epoch + 1:04d} loss_train: {loss_train.item():.4f} acc_train: {acc_train.item():.4f} '
          f'loss_val: {loss_val.item():.4f} acc_val: {acc_val.item():.4f} time: {time.time() - t:.4f}s')
    return loss_train

for epoch in range(epochs):
    loss = train(epoch)
"""

CHANGES = (
    Change(
        "sparse adjacency matrix",
        "storage_format",
        edits={"np.eye(len(labels), dtype=np.float32)))": "np.eye(len(labels), dtype=np.float32))).to_sparse_csr()"},
    ),
    Change("no validation pass", "eval_less_often", edits={"fastmode = False": "fastmode = True"}),
    Change(
        "validation without graph",
        "no_grad",
        edits={
            "        output = model(features, adj)\n    loss_val": "        with torch.no_grad():\n"
            "            output = model(features, adj)\n    loss_val"
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"weight_decay=5e-4)": "weight_decay=5e-4, fused=True)"}),
    Change("one thread", "threads", edits={"fastmode = False": "fastmode = False\ntorch.set_num_threads(1)"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        x = F.relu(self.gc1(x, adj))\n": "        with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "            return self.scores(x, adj).float()\n\n"
            "    def scores(self, x, adj):\n"
            "        x = F.relu(self.gc1(x, adj))\n"
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="(epoch + 1) * len(labels)", seconds=5)
