"""Message passing with an edge network on molecules from xyz files, as in early PyTorch repositories on QM9."""

from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Small molecules of C, N, O, F and hydrogen: trees of bonded atoms in space, a file each with 15 properties."""
    rng = np.random.default_rng(0)
    radius = {"H": 0.31, "C": 0.76, "N": 0.71, "O": 0.66, "F": 0.57}
    valence = {"C": 4, "N": 3, "O": 2, "F": 1}
    charge = {"H": 0.12, "C": -0.15, "N": -0.35, "O": -0.4, "F": -0.2}
    folder = Path("data/qm9/xyz")
    folder.mkdir(parents=True)

    def place(positions: list[np.ndarray], parent: int, length: float) -> None:
        directions = rng.normal(0, 1, (40, 3))
        candidates = positions[parent] + length * directions / np.linalg.norm(directions, axis=1, keepdims=True)
        gaps = np.linalg.norm(candidates[:, None] - np.array(positions), axis=2)
        positions.append(candidates[gaps.min(1).argmax() if len(positions) == 1 else np.sort(gaps)[:, 1].argmax()])

    for molecule in range(scaled(384, scale, 64) + 2 * scaled(64, scale, 32)):
        atoms, positions, free = ["C"], [np.zeros(3)], [4]
        for _ in range(int(rng.integers(4, 7))):
            atom = str(rng.choice(["C", "N", "O", "F"], p=[0.72, 0.12, 0.14, 0.02]))
            open_atoms = np.flatnonzero(free)
            if not len(open_atoms):
                break
            parent = int(rng.choice(open_atoms))
            place(positions, parent, radius[atoms[parent]] + radius[atom])
            free[parent] -= 1
            atoms.append(atom)
            free.append(valence[atom] - 1)
        for parent in range(len(atoms)):
            for _ in range(min(free[parent], 3)):
                place(positions, parent, radius[atoms[parent]] + radius["H"])
                atoms.append("H")
        charges = np.array([charge[atom] for atom in atoms])
        gaps = np.linalg.norm(np.array(positions)[:, None] - np.array(positions), axis=2) + np.eye(len(atoms))
        coulomb = float((charges[:, None] * charges / gaps).sum() - (charges**2).sum())
        homo = -0.24 + 0.03 * coulomb - 0.004 * atoms.count("O") + 0.003 * atoms.count("N") + rng.normal(0, 0.002)
        values = [*rng.uniform(1, 5, 5), homo, *rng.uniform(0, 100, 9)]
        lines = [str(len(atoms)), f"gdb {molecule + 1}\t" + "\t".join(f"{value:.5f}" for value in values)]
        lines += [
            f"{atom}\t" + "\t".join(f"{x:.8f}" for x in [*position, q])
            for atom, position, q in zip(atoms, positions, charges, strict=True)
        ]
        lines += ["\t".join(f"{x:.4f}" for x in np.sort(rng.uniform(100, 3500, 3 * len(atoms) - 6)))]
        (folder / f"dsgdb9nsd_{molecule + 1:06d}.xyz").write_text("\n".join(lines) + "\n")
    return {"n_train": scaled(384, scale, 64), "n_valid": scaled(64, scale, 32)}


CELL = """
import os
import time
import networkx as nx
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import Dataset, DataLoader

root = 'data/qm9/xyz'
batch_size = 16
epochs = 3
lr = 1e-3
lr_decay = 0.6
hidden_size = 16
edge_hidden = 32
n_layers = 3
log_interval = 10
target_property = 5  # homo

ATOMS = ['H', 'C', 'N', 'O', 'F']
NUMBERS = {'H': 1, 'C': 6, 'N': 7, 'O': 8, 'F': 9}
RADII = {'H': 0.31, 'C': 0.76, 'N': 0.71, 'O': 0.66, 'F': 0.57}

torch.manual_seed(1234)
np.random.seed(1234)
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')


def xyz_graph_reader(graph_file):
    with open(graph_file, 'r') as f:
        na = int(f.readline())
        properties = [float(x) for x in f.readline().split()[2:]]
        atoms = []
        for i in range(na):
            symbol, x, y, z, q = f.readline().replace('*^', 'e').split()
            atoms.append((symbol, np.array([float(x), float(y), float(z)]), float(q)))

    g = nx.Graph()
    for i, (symbol, xyz, q) in enumerate(atoms):
        g.add_node(i, a_type=symbol, coord=xyz, pc=q)
    # atoms closer than the sum of their radii (and some slack) are bonded
    for i in range(na):
        for j in range(i + 1, na):
            distance = np.linalg.norm(g.nodes[i]['coord'] - g.nodes[j]['coord'])
            if distance < 1.25 * (RADII[g.nodes[i]['a_type']] + RADII[g.nodes[j]['a_type']]):
                g.add_edge(i, j, distance=distance)
    return g, properties


def qm9_nodes(g):
    h = []
    for n, d in g.nodes(data=True):
        h_t = [int(d['a_type'] == x) for x in ATOMS]
        h_t.append(NUMBERS[d['a_type']])
        h_t.append(d['pc'])
        h_t.append(g.degree[n])
        h_t.append(sum(g.nodes[m]['a_type'] == 'H' for m in g.neighbors(n)))
        h.append(h_t)
    return h


def qm9_edges(g):
    e = {}
    for n1, n2, d in g.edges(data=True):
        types = {g.nodes[n1]['a_type'], g.nodes[n2]['a_type']}
        e_t = [d['distance'], int('H' in types), int(types == {'C'}), int(bool(types & {'N', 'O', 'F'}))]
        e[(n1, n2)] = e_t
    return nx.to_numpy_array(g, weight=None), e


class Qm9(Dataset):
    def __init__(self, root_path, files):
        self.root = root_path
        self.files = files

    def __getitem__(self, index):
        g, target = xyz_graph_reader(os.path.join(self.root, self.files[index]))
        h = qm9_nodes(g)
        g, e = qm9_edges(g)
        return (g, h, e), target[target_property]

    def __len__(self):
        return len(self.files)


def collate_g(batch):
    n_max = max(len(input_b[1]) for input_b, target_b in batch)
    g = np.zeros((len(batch), n_max, n_max))
    h = np.zeros((len(batch), n_max, len(batch[0][0][1][0])))
    e = np.zeros((len(batch), n_max, n_max, 4))
    target = np.zeros((len(batch), 1))
    for i in range(len(batch)):
        adj, nodes, edges = batch[i][0]
        num_nodes = len(nodes)
        g[i, 0:num_nodes, 0:num_nodes] = adj
        h[i, 0:num_nodes, :] = nodes
        for edge in edges.keys():
            e[i, edge[0], edge[1], :] = edges[edge]
            e[i, edge[1], edge[0], :] = edges[edge]
        target[i, 0] = batch[i][1]
    return torch.FloatTensor(g), torch.FloatTensor(h), torch.FloatTensor(e), torch.FloatTensor(target)


class MessageFunction(nn.Module):
    # the edge network of "Neural message passing for quantum chemistry"
    def __init__(self, edge_feat, d):
        super().__init__()
        self.d = d
        self.edge_net = nn.Sequential(nn.Linear(edge_feat, edge_hidden), nn.ReLU(),
                                      nn.Linear(edge_hidden, edge_hidden), nn.ReLU(),
                                      nn.Linear(edge_hidden, d * d))

    def forward(self, h_w, e_vw):
        edge_output = self.edge_net(e_vw.reshape(-1, e_vw.size(2))).view(-1, self.d, self.d)
        m = torch.bmm(edge_output, h_w.reshape(-1, self.d, 1))
        return m.view(h_w.size())


class UpdateFunction(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gru = nn.GRUCell(d, d)

    def forward(self, h_v, m_v):
        return self.gru(m_v, h_v)


class ReadoutFunction(nn.Module):
    def __init__(self, in_size, d, target_size):
        super().__init__()
        self.i = nn.Sequential(nn.Linear(d + in_size, 128), nn.ReLU(), nn.Linear(128, target_size))
        self.j = nn.Sequential(nn.Linear(d, 128), nn.ReLU(), nn.Linear(128, target_size))

    def forward(self, h_T, h_0, mask):
        nn_act = torch.sigmoid(self.i(torch.cat([h_T, h_0], 2))) * self.j(h_T)
        return torch.sum(mask * nn_act, 1)


class MPNN(nn.Module):
    def __init__(self, in_size, edge_feat, d, n_layers):
        super().__init__()
        self.embed = nn.Linear(in_size, d)
        self.m = MessageFunction(edge_feat, d)
        self.u = UpdateFunction(d)
        self.r = ReadoutFunction(in_size, d, 1)
        self.n_layers = n_layers

    def forward(self, g, h_in, e):
        mask = (h_in[:, :, :5].sum(2, keepdim=True) > 0).type_as(h_in)
        h = mask * self.embed(h_in)

        # Layer
        for t in range(self.n_layers):
            h_t = []
            # Apply one layer pass (Message + Update) to every node
            for v in range(h.size(1)):
                m = self.m(h, e[:, v, :, :])
                # Nodes without edge set message to 0
                m = g[:, v, :].unsqueeze(2).expand_as(m) * m
                m = torch.sum(m, 1)
                h_t.append(self.u(h[:, v, :].contiguous(), m))
            h = mask * torch.stack(h_t, 1)

        return self.r(h, h_in, mask)


class AverageMeter:
    def __init__(self):
        self.val, self.sum, self.count = 0, 0, 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n

    @property
    def avg(self):
        return self.sum / self.count


print('Prepare files')
files = [f for f in os.listdir(root) if os.path.isfile(os.path.join(root, f))]
idx = np.random.permutation(len(files)).tolist()
train_ids = [files[i] for i in idx[:n_train]]
valid_ids = [files[i] for i in idx[n_train:n_train + n_valid]]
test_ids = [files[i] for i in idx[n_train + n_valid:]]

data_train = Qm9(root, train_ids)
data_valid = Qm9(root, valid_ids)
data_test = Qm9(root, test_ids)

print('Statistics')
targets = np.array([data_train[i][1] for i in range(len(data_train))])
mean, std = float(targets.mean()), float(targets.std())

train_loader = DataLoader(data_train, batch_size=batch_size, shuffle=True, collate_fn=collate_g)
valid_loader = DataLoader(data_valid, batch_size=batch_size, collate_fn=collate_g)
test_loader = DataLoader(data_test, batch_size=batch_size, collate_fn=collate_g)

g_tuple, l = data_train[0]
model = MPNN(len(g_tuple[1][0]), 4, hidden_size, n_layers).to(device)
optimizer = optim.Adam(model.parameters(), lr=lr)
criterion = nn.MSELoss()


def evaluation(output, target):
    return torch.mean(torch.abs(output - target)) * std


def train(loader, epoch):
    batch_time, data_time, losses, error_ratio = AverageMeter(), AverageMeter(), AverageMeter(), AverageMeter()
    model.train()
    end = time.time()
    for i, (g, h, e, target) in enumerate(loader):
        g, h, e, target = g.to(device), h.to(device), e.to(device), target.to(device)
        target = (target - mean) / std
        data_time.update(time.time() - end)
        optimizer.zero_grad()
        output = model(g, h, e)
        train_loss = criterion(output, target)
        losses.update(train_loss.item(), g.size(0))
        error_ratio.update(evaluation(output, target).item(), g.size(0))
        train_loss.backward()
        optimizer.step()
        batch_time.update(time.time() - end)
        end = time.time()
        if i % log_interval == 0:
            print('Epoch: [{0}][{1}/{2}]\\tTime {batch_time.val:.3f} ({batch_time.avg:.3f})\\t'
                  'Data {data_time.val:.3f} ({data_time.avg:.3f})\\tLoss {loss.val:.4f} ({loss.avg:.4f})\\t'
                  'Error {err.val:.5f} ({err.avg:.5f})'.format(epoch, i, len(loader), batch_time=batch_time,
                                                              data_time=data_time, loss=losses, err=error_ratio))
    return losses, error_ratio


def validate(loader):
    error_ratio = AverageMeter()
    model.eval()
    with torch.no_grad():
        for g, h, e, target in loader:
            g, h, e, target = g.to(device), h.to(device), e.to(device), target.to(device)
            error_ratio.update(evaluation(model(g, h, e), (target - mean) / std).item(), g.size(0))
    print(' * Average Error {err.avg:.5f}'.format(err=error_ratio))
    return error_ratio.avg


molecules, best_er1 = 0, 1e9
for epoch in range(epochs):
    if epoch > epochs // 2:
        for param_group in optimizer.param_groups:
            param_group['lr'] *= lr_decay
    losses, train_error = train(train_loader, epoch)
    molecules += losses.count
    er1 = validate(valid_loader)
    is_best = er1 < best_er1
    best_er1 = min(er1, best_er1)
    state = {'epoch': epoch + 1, 'state_dict': model.state_dict(), 'best_er1': best_er1,
             'optimizer': optimizer.state_dict()}
    torch.save(state, 'checkpoint.pth')
    if is_best:
        torch.save(state, 'model_best.pth')

# Load best checkpoint and evaluate
checkpoint = torch.load('model_best.pth')
model.load_state_dict(checkpoint['state_dict'])
validate(test_loader)
"""

LAYERS = CELL[CELL.index("        # Layer\n") : CELL.index("        return self.r(h, h_in, mask)")]
ALL_ATOMS = """        B, N, d = h.shape
        matrices = self.m.edge_net(e).view(B, N, N, d, d) * g[..., None, None]
        matrices = matrices.transpose(2, 3).reshape(B, N * d, N * d)
        for t in range(self.n_layers):
            m = torch.bmm(matrices, h.reshape(B, N * d, 1)).view(B * N, d)
            h = mask * self.u(h.flatten(0, 1), m).view_as(h)

"""
BONDS_ONLY = """        b, v, w = g.nonzero(as_tuple=True)
        matrices = self.m.edge_net(e[b, v, w]).view(-1, self.m.d, self.m.d)
        source, target = b * h.size(1) + w, b * h.size(1) + v
        for t in range(self.n_layers):
            rows = h.flatten(0, 1)
            m = torch.bmm(matrices, rows[source].unsqueeze(2)).squeeze(2)
            m = torch.zeros_like(m[:1]).expand(len(rows), -1).index_add(0, target, m)
            h = mask * self.u(rows, m.type_as(rows)).view_as(h)

"""
LOADER = "train_loader = DataLoader(data_train, batch_size=batch_size, shuffle=True, collate_fn=collate_g)"
FORWARD = """        output = model(g, h, e)
        train_loss = criterion(output, target)
"""

CHANGES = (
    Change("messages of all atoms at once", "remove_python", edits={LAYERS: ALL_ATOMS}),
    Change("messages along bonds only", "padding", edits={LAYERS: BONDS_ONLY}),
    Change(
        "molecules parsed once",
        "cache_items",
        edits={
            "import os\nimport time\n": "import functools\nimport os\nimport time\n",
            "    def __getitem__(self, index):\n": ""
            "    @functools.lru_cache(maxsize=None)\n    def __getitem__(self, index):\n",
        },
    ),
    Change("two workers", "num_workers", edits={LOADER: LOADER.replace("shuffle=True", "shuffle=True, num_workers=2")}),
    Change("batches of 64", "larger_batch", edits={"batch_size = 16": "batch_size = 64"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            FORWARD: "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            output = model(g, h, e)\n"
            "            train_loss = criterion(output, target)\n"
        },
    ),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={"optim.Adam(model.parameters(), lr=lr)": "optim.Adam(model.parameters(), lr=lr, fused=True)"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="molecules", loss="losses.val", seconds=8)
