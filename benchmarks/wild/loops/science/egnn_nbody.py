"""An E(n) equivariant graph network written by hand forecasts charged particles, with argparse and .npy files, as in research repositories."""

from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

PARTICLES = 5


def simulate(rng: np.random.Generator, count: int) -> tuple[np.ndarray, ...]:
    """Positions and velocities of charged particles at twelve times, their charges, and the products of charges."""
    charges = rng.choice([-1.0, 1.0], (count, PARTICLES, 1))
    edges = charges @ charges.transpose(0, 2, 1)
    position = rng.normal(0, 1, (count, PARTICLES, 3))
    velocity = rng.normal(0, 1, position.shape)
    velocity *= 0.5 / np.linalg.norm(velocity, axis=-1, keepdims=True)
    places, speeds = [], []
    for step in range(1200):
        way = position[:, :, None] - position[:, None]
        force = (edges[..., None] * way / (np.square(way).sum(-1, keepdims=True) + 0.1) ** 1.5).sum(2)
        velocity = velocity + 0.001 * force.clip(-100, 100)
        position = position + 0.001 * velocity
        if step % 100 == 0:
            places.append(position)
            speeds.append(velocity)
    return tuple(a.astype(np.float32) for a in (np.stack(places, 1), np.stack(speeds, 1), edges, charges))


def prepare(scale: float) -> Namespace:
    """Files loc_train_charged.npy, vel_..., edges_... and charges_... for training, validation and test."""
    rng = np.random.default_rng(0)
    Path("dataset").mkdir()
    for split, count in (("train", scaled(1000, scale, 100)), ("valid", 200), ("test", 200)):
        for name, array in zip(("loc", "vel", "edges", "charges"), simulate(rng, count), strict=True):
            np.save(f"dataset/{name}_{split}_charged.npy", array)
    return {}


CELL = """
import argparse
import json
import os
import time

import numpy as np
import torch
from torch import nn, optim

parser = argparse.ArgumentParser(description='N-body system')
parser.add_argument('--exp_name', type=str, default='exp_1', metavar='N')
parser.add_argument('--batch_size', type=int, default=50, metavar='N')
parser.add_argument('--epochs', type=int, default=14, metavar='N')
parser.add_argument('--seed', type=int, default=1, metavar='S')
parser.add_argument('--log_interval', type=int, default=10, metavar='N')
parser.add_argument('--test_interval', type=int, default=2, metavar='N')
parser.add_argument('--outf', type=str, default='n_body_system/logs', metavar='N')
parser.add_argument('--lr', type=float, default=5e-4, metavar='N')
parser.add_argument('--nf', type=int, default=64, metavar='N')
parser.add_argument('--n_layers', type=int, default=4, metavar='N')
parser.add_argument('--max_training_samples', type=int, default=3000, metavar='N')
parser.add_argument('--weight_decay', type=float, default=1e-12, metavar='N')
parser.add_argument('--norm_diff', type=eval, default=False, metavar='N')
parser.add_argument('--frame_0', type=int, default=3)
parser.add_argument('--frame_T', type=int, default=9)
args = parser.parse_args([])
print(args)

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
torch.manual_seed(args.seed)
os.makedirs(args.outf + '/' + args.exp_name, exist_ok=True)


class NBodyDataset:
    def __init__(self, partition='train', max_samples=1e8, root='dataset'):
        loc = np.load(f'{root}/loc_{partition}_charged.npy')
        vel = np.load(f'{root}/vel_{partition}_charged.npy')
        edges = np.load(f'{root}/edges_{partition}_charged.npy')
        charges = np.load(f'{root}/charges_{partition}_charged.npy')
        n = int(min(max_samples, len(loc)))
        self.loc, self.vel = torch.Tensor(loc[:n]), torch.Tensor(vel[:n])
        self.charges = torch.Tensor(charges[:n])
        self.n_nodes = loc.shape[2]
        # a fully connected graph: the order of the edges is the same for every system
        rows, cols, edge_attr = [], [], []
        for i in range(self.n_nodes):
            for j in range(self.n_nodes):
                if i != j:
                    edge_attr.append(edges[:n, i, j])
                    rows.append(i)
                    cols.append(j)
        self.edges = [rows, cols]
        self.edge_attr = torch.Tensor(np.array(edge_attr)).transpose(0, 1).unsqueeze(2)

    def __getitem__(self, i):
        return (self.loc[i, args.frame_0], self.vel[i, args.frame_0], self.edge_attr[i], self.charges[i],
                self.loc[i, args.frame_T])

    def __len__(self):
        return len(self.loc)

    def get_edges(self, batch_size, n_nodes):
        edges = [torch.LongTensor(self.edges[0]), torch.LongTensor(self.edges[1])]
        if batch_size == 1:
            return edges
        rows, cols = [], []
        for i in range(batch_size):
            rows.append(edges[0] + n_nodes * i)
            cols.append(edges[1] + n_nodes * i)
        return [torch.cat(rows), torch.cat(cols)]


def unsorted_segment_sum(data, segment_ids, num_segments):
    result = data.new_full((num_segments, data.size(1)), 0)
    segment_ids = segment_ids.unsqueeze(-1).expand(-1, data.size(1))
    result.scatter_add_(0, segment_ids, data)
    return result


def unsorted_segment_mean(data, segment_ids, num_segments):
    result = data.new_full((num_segments, data.size(1)), 0)
    count = data.new_full((num_segments, data.size(1)), 0)
    segment_ids = segment_ids.unsqueeze(-1).expand(-1, data.size(1))
    result.scatter_add_(0, segment_ids, data)
    count.scatter_add_(0, segment_ids, torch.ones_like(data))
    return result / count.clamp(min=1)


class EquivariantLayer(nn.Module):
    def __init__(self, hidden_nf, edges_in_d, act_fn=nn.SiLU(), norm_diff=False):
        super().__init__()
        self.norm_diff = norm_diff
        self.edge_mlp = nn.Sequential(nn.Linear(2 * hidden_nf + 1 + edges_in_d, hidden_nf), act_fn,
                                      nn.Linear(hidden_nf, hidden_nf), act_fn)
        self.node_mlp = nn.Sequential(nn.Linear(2 * hidden_nf, hidden_nf), act_fn, nn.Linear(hidden_nf, hidden_nf))
        last = nn.Linear(hidden_nf, 1, bias=False)
        nn.init.xavier_uniform_(last.weight, gain=0.001)
        self.coord_mlp = nn.Sequential(nn.Linear(hidden_nf, hidden_nf), act_fn, last)
        self.coord_mlp_vel = nn.Sequential(nn.Linear(hidden_nf, hidden_nf), act_fn, nn.Linear(hidden_nf, 1))

    def edge_model(self, source, target, radial, edge_attr):
        return self.edge_mlp(torch.cat([source, target, radial, edge_attr], dim=1))

    def node_model(self, x, edge_index, edge_feat):
        row, col = edge_index
        agg = unsorted_segment_sum(edge_feat, row, num_segments=x.size(0))
        return x + self.node_mlp(torch.cat([x, agg], dim=1))

    def coord_model(self, coord, edge_index, coord_diff, edge_feat):
        row, col = edge_index
        trans = coord_diff * self.coord_mlp(edge_feat)
        trans = torch.clamp(trans, min=-100, max=100)
        return coord + unsorted_segment_mean(trans, row, num_segments=coord.size(0))

    def coord2radial(self, edge_index, coord):
        row, col = edge_index
        coord_diff = coord[row] - coord[col]
        radial = torch.sum(coord_diff ** 2, 1).unsqueeze(1)
        if self.norm_diff:
            coord_diff = coord_diff / (torch.sqrt(radial) + 1)
        return radial, coord_diff

    def forward(self, h, edge_index, coord, vel, edge_attr):
        row, col = edge_index
        radial, coord_diff = self.coord2radial(edge_index, coord)
        edge_feat = self.edge_model(h[row], h[col], radial, edge_attr)
        coord = self.coord_model(coord, edge_index, coord_diff, edge_feat)
        coord = coord + self.coord_mlp_vel(h) * vel
        h = self.node_model(h, edge_index, edge_feat)
        return h, coord


class EGNN(nn.Module):
    def __init__(self, in_node_nf, in_edge_nf, hidden_nf, n_layers, norm_diff):
        super().__init__()
        self.n_layers = n_layers
        self.embedding = nn.Linear(in_node_nf, hidden_nf)
        for i in range(n_layers):
            self.add_module('gcl_%d' % i, EquivariantLayer(hidden_nf, in_edge_nf, norm_diff=norm_diff))

    def forward(self, h, x, edges, vel, edge_attr):
        h = self.embedding(h)
        for i in range(self.n_layers):
            h, x = self._modules['gcl_%d' % i](h, edges, x, vel, edge_attr)
        return x


dataset_train = NBodyDataset('train', max_samples=args.max_training_samples)
loader_train = torch.utils.data.DataLoader(dataset_train, batch_size=args.batch_size, shuffle=True, drop_last=True)
dataset_val = NBodyDataset('valid')
loader_val = torch.utils.data.DataLoader(dataset_val, batch_size=args.batch_size, shuffle=False)
dataset_test = NBodyDataset('test')
loader_test = torch.utils.data.DataLoader(dataset_test, batch_size=args.batch_size, shuffle=False)

model = EGNN(in_node_nf=1, in_edge_nf=2, hidden_nf=args.nf, n_layers=args.n_layers, norm_diff=args.norm_diff)
model = model.to(device)
optimizer = optim.Adam(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
loss_mse = nn.MSELoss()
print('%d parameters' % sum(p.numel() for p in model.parameters()))


def train(epoch, loader, backprop=True):
    model.train(backprop)
    res = {'epoch': epoch, 'loss': 0, 'counter': 0}
    start = time.time()
    for batch_idx, data in enumerate(loader):
        batch_size, n_nodes, _ = data[0].size()
        data = [d.to(device) for d in data]
        data = [d.reshape(-1, d.size(2)) for d in data]
        loc, vel, edge_attr, charges, loc_end = data
        edges = loader.dataset.get_edges(batch_size, n_nodes)
        edges = [edges[0].to(device), edges[1].to(device)]

        optimizer.zero_grad()
        with torch.set_grad_enabled(backprop):
            nodes = torch.sqrt(torch.sum(vel ** 2, dim=1)).unsqueeze(1).detach()
            rows, cols = edges
            loc_dist = torch.sum((loc[rows] - loc[cols]) ** 2, 1).unsqueeze(1)  # relative distances among locations
            edge_attr = torch.cat([edge_attr, loc_dist], 1).detach()  # concatenate all edge properties
            loc_pred = model(nodes, loc.detach(), edges, vel, edge_attr)
            loss = loss_mse(loc_pred, loc_end)
        if backprop:
            loss.backward()
            optimizer.step()
        res['loss'] += loss.item() * batch_size
        res['counter'] += batch_size
    prefix = '' if backprop else '==> '
    print('%s epoch %d avg loss: %.5f  (%.2f s)' % (prefix, epoch, res['loss'] / res['counter'], time.time() - start))
    return res['loss'] / res['counter'], res['counter']


results = {'epochs': [], 'train loss': [], 'val loss': [], 'test loss': []}
best_val_loss, best_test_loss, best_epoch, n_systems = 1e8, 1e8, 0, 0
for epoch in range(args.epochs):
    train_loss, count = train(epoch, loader_train)
    n_systems += count
    results['train loss'].append(train_loss)
    if epoch % args.test_interval == 0:
        val_loss, _ = train(epoch, loader_val, backprop=False)
        test_loss, _ = train(epoch, loader_test, backprop=False)
        results['epochs'].append(epoch)
        results['val loss'].append(val_loss)
        results['test loss'].append(test_loss)
        if val_loss < best_val_loss:
            best_val_loss, best_test_loss, best_epoch = val_loss, test_loss, epoch
            torch.save(model.state_dict(), args.outf + '/' + args.exp_name + '/best.pth')
        print('*** Best Val Loss: %.5f \\t Best Test Loss: %.5f \\t Best epoch %d' % (best_val_loss, best_test_loss,
                                                                                 best_epoch))
    with open(args.outf + '/' + args.exp_name + '/losses.json', 'w') as outfile:
        outfile.write(json.dumps(results, indent=4))
"""

GET_EDGES = CELL[CELL.index("    def get_edges(self") : CELL.index("        edges = [torch.LongTensor(self.edges[0])")]
SUM = CELL[CELL.index("def unsorted_segment_sum") : CELL.index("class EquivariantLayer")]
DENSE = """def unsorted_segment_sum(data, segment_ids, num_segments):
    # the edges are sorted by their first node, and every node has the same number of edges
    return data.view(num_segments, -1, data.size(1)).sum(1)


def unsorted_segment_mean(data, segment_ids, num_segments):
    return data.view(num_segments, -1, data.size(1)).mean(1)


"""
EDGE_MODEL = "        return self.edge_mlp(torch.cat([source, target, radial, edge_attr], dim=1))\n"
FORWARD_EDGES = "        edge_feat = self.edge_model(h[row], h[col], radial, edge_attr)\n"
PROJECTED = """        w_source, w_target, w_rest = self.edge_mlp[0].weight.split([h.size(1), h.size(1), 1 + edge_attr.size(1)], 1)
        edge_feat = nn.functional.linear(torch.cat([radial, edge_attr], dim=1), w_rest, self.edge_mlp[0].bias)
        edge_feat = edge_feat + (h @ w_source.t())[row] + (h @ w_target.t())[col]
        edge_feat = self.edge_mlp[1:](edge_feat)
"""

CHANGES = (
    Change(
        "edges of a batch built once, batches as slices",
        "batch_whole",
        edits={
            GET_EDGES: "    @functools.lru_cache(maxsize=None)\n" + GET_EDGES,
            "import argparse\n": "import argparse\nimport functools\n",
            "    def __len__(self):\n": "    def __getitems__(self, indices):\n"
            "        return self[torch.tensor(indices)]\n\n    def __len__(self):\n",
            "shuffle=True, drop_last=True)": "shuffle=True, drop_last=True,\n"
            "                                           collate_fn=lambda batch: batch)",
            "dataset_val, batch_size=args.batch_size, shuffle=False)": ""
            "dataset_val, batch_size=args.batch_size, shuffle=False, collate_fn=lambda batch: batch)",
            "dataset_test, batch_size=args.batch_size, shuffle=False)": ""
            "dataset_test, batch_size=args.batch_size, shuffle=False, collate_fn=lambda batch: batch)",
        },
    ),
    Change("dense sums instead of scattered ones", "other", edits={SUM: DENSE}),
    Change("first layer of edges applied to nodes", "other", edits={FORWARD_EDGES: PROJECTED}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "            loc_pred = model(nodes, loc.detach(), edges, vel, edge_attr)\n"
            "            loss = loss_mse(loc_pred, loc_end)\n": ""
            "            with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "                loc_pred = model(nodes, loc.detach(), edges, vel, edge_attr)\n"
            "                loss = loss_mse(loc_pred, loc_end)\n",
        },
    ),
    Change("batches of 100", "larger_batch", edits={"type=int, default=50": "type=int, default=100"}),
    Change(
        "two workers",
        "num_workers",
        edits={"shuffle=True, drop_last=True)": "shuffle=True, drop_last=True, num_workers=2)"},
    ),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={"weight_decay=args.weight_decay)": "weight_decay=args.weight_decay, fused=True)"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_systems", loss="train_loss", seconds=6)
