"""A small Graphormer in Lightning: shortest paths of every molecule by networkx, in every epoch."""

import random
from typing import Any

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def molecule() -> dict[str, Any]:
    """A random molecule: a tree of atoms with some rings, and a property of its atoms, bonds, and rings."""
    count = min(max(int(random.gauss(23, 6)), 9), 38)
    degree = [0] * count
    bonds = []
    for atom in range(1, count):
        candidates = [other for other in range(max(0, atom - 4), atom) if degree[other] < 3] or [atom - 1]
        other = random.choice(candidates)
        bonds.append((other, atom, random.choices((0, 1, 2), (8, 2, 1))[0]))
        degree[other] += 1
        degree[atom] += 1
    rings = 0
    for atom in range(count - 5):
        if degree[atom] < 3 and degree[atom + 5] < 3 and random.random() < 0.3:
            bonds.append((atom, atom + 5, 3))
            degree[atom] += 1
            degree[atom + 5] += 1
            rings += 1
    atoms = random.choices(range(9), (60, 12, 12, 4, 4, 3, 2, 2, 1), k=count)
    target = 0.15 * atoms.count(0) - 0.4 * atoms.count(1) - 0.3 * atoms.count(2) - 0.5 * rings + random.gauss(0, 0.1)
    return {"atoms": atoms, "bonds": bonds, "y": target}


def prepare(scale: float) -> Namespace:
    """Molecules for training and validation."""
    random.seed(0)
    return {
        "train_mols": [molecule() for _ in range(scaled(576, scale, 64))],
        "val_mols": [molecule() for _ in range(scaled(128, scale, 64))],
    }


CELL = """
import networkx as nx
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader
import lightning.pytorch as pl

MAX_DIST, MAX_DEGREE, NUM_ATOMS, NUM_BONDS = 20, 8, 9, 4

class MoleculeDataset(Dataset):
    def __init__(self, mols):
        self.mols = mols

    def __len__(self):
        return len(self.mols)

    def __getitem__(self, idx):
        mol = self.mols[idx]
        n = len(mol['atoms'])
        g = nx.Graph()
        g.add_nodes_from(range(n))
        for i, j, bond_type in mol['bonds']:
            g.add_edge(i, j, bond_type=bond_type)
        x = torch.tensor(mol['atoms'], dtype=torch.long) + 1
        degree = torch.tensor([min(g.degree(i), MAX_DEGREE) for i in range(n)], dtype=torch.long) + 1
        spatial_pos = torch.full((n, n), MAX_DIST + 1, dtype=torch.long)
        for i, lengths in nx.all_pairs_shortest_path_length(g):
            for j, d in lengths.items():
                spatial_pos[i, j] = min(d, MAX_DIST)
        attn_edge_type = torch.zeros(n, n, dtype=torch.long)
        for i, j, data in g.edges(data=True):
            attn_edge_type[i, j] = attn_edge_type[j, i] = data['bond_type'] + 1
        return {'x': x, 'degree': degree, 'spatial_pos': spatial_pos + 1, 'edge': attn_edge_type, 'y': mol['y']}

def collator(items):
    max_n = max(len(it['x']) for it in items)
    b = len(items)
    x, degree = torch.zeros(b, max_n, dtype=torch.long), torch.zeros(b, max_n, dtype=torch.long)
    spatial_pos, edge = torch.zeros(b, max_n, max_n, dtype=torch.long), torch.zeros(b, max_n, max_n, dtype=torch.long)
    for k, it in enumerate(items):
        n = len(it['x'])
        x[k, :n], degree[k, :n] = it['x'], it['degree']
        spatial_pos[k, :n, :n], edge[k, :n, :n] = it['spatial_pos'], it['edge']
    y = torch.tensor([it['y'] for it in items], dtype=torch.float)
    return {'x': x, 'degree': degree, 'spatial_pos': spatial_pos, 'edge': edge, 'y': y}

class MultiHeadAttention(nn.Module):
    def __init__(self, hidden_size, num_heads, dropout):
        super().__init__()
        self.num_heads, self.att_size = num_heads, hidden_size // num_heads
        self.scale = self.att_size ** -0.5
        self.linear_q = nn.Linear(hidden_size, hidden_size)
        self.linear_k = nn.Linear(hidden_size, hidden_size)
        self.linear_v = nn.Linear(hidden_size, hidden_size)
        self.att_dropout = nn.Dropout(dropout)
        self.output_layer = nn.Linear(hidden_size, hidden_size)

    def forward(self, q, k, v, attn_bias):
        b, n, c = q.shape
        q = self.linear_q(q).view(b, n, self.num_heads, self.att_size).transpose(1, 2)
        k = self.linear_k(k).view(b, n, self.num_heads, self.att_size).transpose(1, 2).transpose(2, 3)
        v = self.linear_v(v).view(b, n, self.num_heads, self.att_size).transpose(1, 2)
        x = torch.matmul(q * self.scale, k) + attn_bias
        x = self.att_dropout(torch.softmax(x, dim=3))
        x = x.matmul(v).transpose(1, 2).contiguous().view(b, n, c)
        return self.output_layer(x)

class EncoderLayer(nn.Module):
    def __init__(self, hidden_size, ffn_size, dropout, num_heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(hidden_size), nn.LayerNorm(hidden_size)
        self.attention = MultiHeadAttention(hidden_size, num_heads, dropout)
        self.ffn = nn.Sequential(nn.Linear(hidden_size, ffn_size), nn.GELU(), nn.Linear(ffn_size, hidden_size))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, attn_bias):
        y = self.norm1(x)
        x = x + self.dropout(self.attention(y, y, y, attn_bias))
        return x + self.dropout(self.ffn(self.norm2(x)))

class Graphormer(pl.LightningModule):
    def __init__(self, n_layers=4, num_heads=8, hidden_dim=80, dropout_rate=0.1, peak_lr=5e-4):
        super().__init__()
        self.save_hyperparameters()
        self.num_heads = num_heads
        self.atom_encoder = nn.Embedding(NUM_ATOMS + 1, hidden_dim, padding_idx=0)
        self.degree_encoder = nn.Embedding(MAX_DEGREE + 2, hidden_dim, padding_idx=0)
        self.spatial_pos_encoder = nn.Embedding(MAX_DIST + 3, num_heads, padding_idx=0)
        self.edge_encoder = nn.Embedding(NUM_BONDS + 1, num_heads, padding_idx=0)
        self.graph_token = nn.Parameter(torch.randn(1, 1, hidden_dim) * 0.02)
        self.graph_token_virtual_distance = nn.Parameter(torch.zeros(1, num_heads, 1))
        self.layers = nn.ModuleList(
            [EncoderLayer(hidden_dim, hidden_dim, dropout_rate, num_heads) for _ in range(n_layers)])
        self.final_ln = nn.LayerNorm(hidden_dim)
        self.out_proj = nn.Linear(hidden_dim, 1)
        self.seen = 0

    def forward(self, batch):
        x = batch['x']
        b, n = x.shape
        bias = self.spatial_pos_encoder(batch['spatial_pos']) + self.edge_encoder(batch['edge'])
        attn_bias = torch.zeros(b, self.num_heads, n + 1, n + 1, device=x.device)
        attn_bias[:, :, 1:, 1:] = bias.permute(0, 3, 1, 2)
        t = self.graph_token_virtual_distance
        attn_bias[:, :, 1:, 0] = attn_bias[:, :, 1:, 0] + t
        attn_bias[:, :, 0, :] = attn_bias[:, :, 0, :] + t
        padding = F.pad(x == 0, (1, 0))
        attn_bias = attn_bias.masked_fill(padding[:, None, None, :], float('-inf'))
        h = self.atom_encoder(x) + self.degree_encoder(batch['degree'])
        h = torch.cat([self.graph_token.expand(b, -1, -1), h], dim=1)
        for layer in self.layers:
            h = layer(h, attn_bias)
        return self.out_proj(self.final_ln(h[:, 0])).squeeze(-1)

    def training_step(self, batch, batch_idx):
        loss = F.l1_loss(self(batch), batch['y'])
        self.log('train_loss', loss, prog_bar=True)
        self.seen += len(batch['y'])
        self.last_loss = loss.detach()
        return loss

    def validation_step(self, batch, batch_idx):
        self.log('valid_mae', F.l1_loss(self(batch), batch['y']), prog_bar=True, batch_size=len(batch['y']))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.peak_lr, weight_decay=0.01)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=20)
        return {'optimizer': optimizer, 'lr_scheduler': {'scheduler': scheduler, 'interval': 'step'}}

pl.seed_everything(1)
batch_size = 64
train_set, val_set = MoleculeDataset(train_mols), MoleculeDataset(val_mols)
train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True, collate_fn=collator)
val_loader = DataLoader(val_set, batch_size=64, collate_fn=collator)
model = Graphormer()
trainer = pl.Trainer(max_epochs=3, gradient_clip_val=5.0, accelerator='auto', log_every_n_steps=5,
                     enable_checkpointing=False)
trainer.fit(model, train_loader, val_loader)
"""

BFS = """        spatial_pos = torch.full((n, n), MAX_DIST + 1, dtype=torch.long)
        for i, lengths in nx.all_pairs_shortest_path_length(g):
            for j, d in lengths.items():
                spatial_pos[i, j] = min(d, MAX_DIST)
"""
FLOYD = """        dist = np.full((n, n), MAX_DIST + 1)
        ends = np.array(mol['bonds'])[:, :2]
        dist[ends[:, 0], ends[:, 1]] = dist[ends[:, 1], ends[:, 0]] = 1
        np.fill_diagonal(dist, 0)
        for k in range(n):
            np.minimum(dist, dist[:, k:k + 1] + dist[k:k + 1], out=dist)
        dist[(dist > MAX_DIST)] = MAX_DIST
        spatial_pos = torch.from_numpy(dist)
"""

CHANGES = (
    Change(
        "items computed once",
        "cache_items",
        edits={
            "train_set, val_set = MoleculeDataset(train_mols), MoleculeDataset(val_mols)": (
                "train_set, val_set = list(MoleculeDataset(train_mols)), list(MoleculeDataset(val_mols))"
            ),
        },
    ),
    Change(
        "shortest paths with NumPy",
        "vectorize_items",
        edits={BFS: FLOYD, "import networkx as nx\n": "import networkx as nx\nimport numpy as np\n"},
    ),
    Change(
        "two workers",
        "num_workers",
        edits={"shuffle=True, collate_fn=collator)": "shuffle=True, collate_fn=collator, num_workers=2)"},
    ),
    Change("batches of 192", "larger_batch", edits={"\nbatch_size = 64": "\nbatch_size = 192"}),
    Change("fused AdamW", "fused_optimizer", edits={"weight_decay=0.01)": "weight_decay=0.01, fused=True)"}),
    Change("bfloat16", "precision", edits={"accelerator='auto',": "accelerator='auto', precision='bf16-mixed',"}),
    Change(
        "no logger, no progress bar",
        "fewer_logs",
        edits={
            "        self.log('train_loss', loss, prog_bar=True)\n": "",
            "enable_checkpointing=False": "enable_checkpointing=False, logger=False, enable_progress_bar=False",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="model.seen", loss="model.last_loss.item()", seconds=6)
