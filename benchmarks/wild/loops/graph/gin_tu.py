"""A graph isomorphism network on small graphs; every forward pass builds the block adjacency, as in powerful-gnns."""

import numpy as np
import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class Graph:
    """A graph with its edges in both directions and a one-hot tag per node."""

    def __init__(self, nodes: int, edges: np.ndarray, tags: np.ndarray, label: int) -> None:
        self.g = range(nodes)
        self.edge_mat = torch.from_numpy(np.concatenate([edges, edges[::-1]], 1))
        self.node_features = torch.eye(8)[tags]
        self.label = label


def prepare(scale: float) -> Namespace:
    """Graphs of 12 to 60 nodes, shaped like proteins, in two classes."""
    rng = np.random.default_rng(0)
    graphs = []
    for index in range(600):
        nodes = int(rng.integers(12, 60))
        edges = np.stack([np.arange(1, nodes), rng.integers(0, np.arange(1, nodes))])
        extra = rng.integers(0, nodes, (2, nodes if index % 2 else nodes // 2))
        graphs.append(Graph(nodes, np.concatenate([edges, extra], 1), rng.integers(0, 8, nodes), index % 2))
    return {"graphs": graphs, "iters_per_epoch": scaled(50, scale, 2)}


CELL = """
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from tqdm import tqdm

criterion = nn.CrossEntropyLoss()

class MLP(nn.Module):
    def __init__(self, num_layers, input_dim, hidden_dim, output_dim):
        super(MLP, self).__init__()
        self.num_layers = num_layers
        self.linears = torch.nn.ModuleList()
        self.batch_norms = torch.nn.ModuleList()
        self.linears.append(nn.Linear(input_dim, hidden_dim))
        for layer in range(num_layers - 2):
            self.linears.append(nn.Linear(hidden_dim, hidden_dim))
        self.linears.append(nn.Linear(hidden_dim, output_dim))
        for layer in range(num_layers - 1):
            self.batch_norms.append(nn.BatchNorm1d((hidden_dim)))

    def forward(self, x):
        h = x
        for layer in range(self.num_layers - 1):
            h = F.relu(self.batch_norms[layer](self.linears[layer](h)))
        return self.linears[self.num_layers - 1](h)

class GraphCNN(nn.Module):
    def __init__(self, num_layers, num_mlp_layers, input_dim, hidden_dim, output_dim, final_dropout, learn_eps, device):
        super(GraphCNN, self).__init__()
        self.final_dropout = final_dropout
        self.device = device
        self.num_layers = num_layers
        self.learn_eps = learn_eps
        self.eps = nn.Parameter(torch.zeros(self.num_layers - 1))
        self.mlps = torch.nn.ModuleList()
        self.batch_norms = torch.nn.ModuleList()
        for layer in range(self.num_layers - 1):
            self.mlps.append(MLP(num_mlp_layers, input_dim if layer == 0 else hidden_dim, hidden_dim, hidden_dim))
            self.batch_norms.append(nn.BatchNorm1d(hidden_dim))
        self.linears_prediction = torch.nn.ModuleList()
        for layer in range(num_layers):
            self.linears_prediction.append(nn.Linear(input_dim if layer == 0 else hidden_dim, output_dim))

    def __preprocess_neighbors_sumavepool(self, batch_graph):
        ### create block diagonal sparse matrix
        edge_mat_list = []
        start_idx = [0]
        for i, graph in enumerate(batch_graph):
            start_idx.append(start_idx[i] + len(graph.g))
            edge_mat_list.append(graph.edge_mat + start_idx[i])
        Adj_block_idx = torch.cat(edge_mat_list, 1)
        Adj_block_elem = torch.ones(Adj_block_idx.shape[1])
        Adj_block = torch.sparse_coo_tensor(Adj_block_idx, Adj_block_elem, torch.Size([start_idx[-1], start_idx[-1]]))
        return Adj_block.to(self.device)

    def __preprocess_graphpool(self, batch_graph):
        ### create sum pooling sparse matrix over entire nodes in each graph (num graphs x num nodes)
        start_idx = [0]
        for i, graph in enumerate(batch_graph):
            start_idx.append(start_idx[i] + len(graph.g))
        idx = []
        elem = []
        for i, graph in enumerate(batch_graph):
            elem.extend([1] * len(graph.g))
            idx.extend([[i, j] for j in range(start_idx[i], start_idx[i + 1], 1)])
        elem = torch.FloatTensor(elem)
        idx = torch.LongTensor(idx).transpose(0, 1)
        graph_pool = torch.sparse_coo_tensor(idx, elem, torch.Size([len(batch_graph), start_idx[-1]]))
        return graph_pool.to(self.device)

    def next_layer_eps(self, h, layer, Adj_block):
        pooled = torch.spmm(Adj_block, h)
        # Reweights the center node representation when aggregating it with its neighbors
        pooled = pooled + (1 + self.eps[layer]) * h
        pooled_rep = self.mlps[layer](pooled)
        h = self.batch_norms[layer](pooled_rep)
        return F.relu(h)

    def forward(self, batch_graph):
        X_concat = torch.cat([graph.node_features for graph in batch_graph], 0).to(self.device)
        graph_pool = self.__preprocess_graphpool(batch_graph)
        Adj_block = self.__preprocess_neighbors_sumavepool(batch_graph)
        # list of hidden representation at each layer (including input)
        hidden_rep = [X_concat]
        h = X_concat
        for layer in range(self.num_layers - 1):
            h = self.next_layer_eps(h, layer, Adj_block)
            hidden_rep.append(h)
        score_over_layer = 0
        # perform pooling over all nodes in each graph in every layer
        for layer, h in enumerate(hidden_rep):
            pooled_h = torch.spmm(graph_pool, h)
            score_over_layer += F.dropout(self.linears_prediction[layer](pooled_h), self.final_dropout, training=self.training)
        return score_over_layer

def train(model, device, train_graphs, optimizer, epoch):
    model.train()
    pbar = tqdm(range(iters_per_epoch * 32 // batch_size), unit='batch')
    loss_accum = 0
    for pos in pbar:
        selected_idx = np.random.permutation(len(train_graphs))[:batch_size]
        batch_graph = [train_graphs[idx] for idx in selected_idx]
        output = model(batch_graph)
        labels = torch.LongTensor([graph.label for graph in batch_graph]).to(device)
        loss = criterion(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss = loss.detach().cpu().numpy()
        loss_accum += loss
        pbar.set_description('epoch: %d' % (epoch))
    average_loss = loss_accum / len(pbar)
    print('loss training: %f' % (average_loss))
    return average_loss, len(pbar) * batch_size

### pass data to model with minibatch during testing to avoid memory overflow (does not perform backpropagation)
def pass_data_iteratively(model, graphs, minibatch_size=64):
    model.eval()
    output = []
    idx = np.arange(len(graphs))
    for i in range(0, len(graphs), minibatch_size):
        sampled_idx = idx[i:i + minibatch_size]
        if len(sampled_idx) == 0:
            continue
        output.append(model([graphs[j] for j in sampled_idx]).detach())
    return torch.cat(output, 0)

def test(model, device, train_graphs, test_graphs, epoch):
    model.eval()
    accuracies = []
    for part in (train_graphs, test_graphs):
        output = pass_data_iteratively(model, part)
        pred = output.max(1, keepdim=True)[1]
        labels = torch.LongTensor([graph.label for graph in part]).to(device)
        correct = pred.eq(labels.view_as(pred)).sum().cpu().item()
        accuracies.append(correct / float(len(part)))
    print('accuracy train: %f test: %f' % tuple(accuracies))
    return accuracies

batch_size, epochs = 32, 11
device = torch.device('cuda:0') if torch.cuda.is_available() else torch.device('cpu')
train_graphs, test_graphs = graphs[:540], graphs[540:]
model = GraphCNN(5, 2, train_graphs[0].node_features.shape[1], 64, 2, 0.5, True, device).to(device)
optimizer = optim.Adam(model.parameters(), lr=0.01)
scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=50, gamma=0.5)
n_graphs = 0
for epoch in range(1, epochs + 1):
    avg_loss, n = train(model, device, train_graphs, optimizer, epoch)
    n_graphs += n
    scheduler.step()
    acc_train, acc_test = test(model, device, train_graphs, test_graphs, epoch)
"""

_POOL = CELL[
    CELL.index(
        "        start_idx = [0]\n        for i, graph in enumerate(batch_graph):\n            start_idx.append(start_idx[i] + len(graph.g))\n        idx = []"
    ) : CELL.index("        return graph_pool.to(self.device)")
]

CHANGES = (
    Change(
        "pooling matrix by repeat_interleave",
        "remove_python",
        edits={
            _POOL: "        sizes = torch.tensor([len(graph.g) for graph in batch_graph])\n"
            "        rows = torch.repeat_interleave(torch.arange(len(sizes)), sizes)\n"
            "        idx = torch.stack([rows, torch.arange(len(rows))])\n"
            "        graph_pool = torch.sparse_coo_tensor(idx, torch.ones(len(rows)), torch.Size([len(sizes), len(rows)]))\n"
        },
    ),
    Change(
        "pooling by index_add, adjacency in CSR form",
        "other",
        edits={
            _POOL: "        sizes = torch.tensor([len(graph.g) for graph in batch_graph])\n"
            "        graph_pool = torch.repeat_interleave(torch.arange(len(sizes)), sizes)\n",
            "            pooled_h = torch.spmm(graph_pool, h)\n": ""
            "            pooled_h = h.new_zeros(len(batch_graph), h.shape[1]).index_add(0, graph_pool, h)\n",
            "        return Adj_block.to(self.device)\n": "        return Adj_block.coalesce().to_sparse_csr().to(self.device)\n",
        },
    ),
    Change(
        "no graph in the test",
        "no_grad",
        edits={"def pass_data_iteratively(": "@torch.no_grad()\ndef pass_data_iteratively("},
    ),
    Change(
        "test after the last epoch only",
        "eval_less_often",
        edits={
            "    acc_train, acc_test = test(model": "    if epoch == epochs:\n        acc_train, acc_test = test(model"
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=0.01)": "lr=0.01, fused=True)"}),
    Change("batches of 64 graphs", "larger_batch", edits={"batch_size, epochs = 32": "batch_size, epochs = 64"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_graphs", loss="float(avg_loss)", seconds=10)
