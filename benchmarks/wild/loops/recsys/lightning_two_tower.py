"""Two-tower retrieval with in-batch negatives, in Lightning with manual optimization: SparseAdam for tables, Adam for towers."""

import numpy as np
import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Interactions of users with items of uneven popularity, with an hour of the day each."""
    rng = np.random.default_rng(0)
    rows = scaled(245_760, scale, 4096)
    return {
        "user_ids": torch.from_numpy((60_000 * rng.random(rows)).astype(np.int64)),
        "item_ids": torch.from_numpy((25_000 * rng.random(rows) ** 2).astype(np.int64)),
        "hours": torch.from_numpy(rng.integers(0, 24, rows)),
    }


CELL = """
import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def tower(d_in, d_hidden, d_out):
    return nn.Sequential(nn.Linear(d_in, d_hidden), nn.ReLU(), nn.LayerNorm(d_hidden), nn.Linear(d_hidden, d_out))


class InteractionData(L.LightningDataModule):
    def __init__(self, users, items, hours, batch_size=512):
        super().__init__()
        self.dataset = TensorDataset(users, items, hours)
        self.batch_size = batch_size

    def train_dataloader(self):
        return DataLoader(self.dataset, batch_size=self.batch_size, shuffle=True, drop_last=True)


class TwoTower(L.LightningModule):
    def __init__(self, n_users, n_items, dim=48, out_dim=64, temperature=0.07):
        super().__init__()
        self.automatic_optimization = False
        self.user_emb = nn.Embedding(n_users, dim, sparse=True)
        self.item_emb = nn.Embedding(n_items, dim, sparse=True)
        self.hour_emb = nn.Embedding(24, 16)
        self.user_tower = tower(dim + 16, 128, out_dim)
        self.item_tower = tower(dim, 128, out_dim)
        self.temperature = temperature
        self.n_seen = 0
        self.last_loss = float('nan')

    def training_step(self, batch, batch_idx):
        users, items, hours = batch
        u = F.normalize(self.user_tower(torch.cat([self.user_emb(users), self.hour_emb(hours)], dim=-1)), dim=-1)
        v = F.normalize(self.item_tower(self.item_emb(items)), dim=-1)
        scores = u @ v.T / self.temperature
        # an item that occurs twice in the batch is no negative
        same = items[:, None] == items[None, :]
        same.fill_diagonal_(False)
        scores = scores.masked_fill(same, -1e4)
        loss = F.cross_entropy(scores, torch.arange(len(users), device=scores.device))

        opt_tables, opt_towers = self.optimizers()
        opt_tables.zero_grad()
        opt_towers.zero_grad()
        self.manual_backward(loss)
        opt_tables.step()
        opt_towers.step()

        hit = (scores.argmax(1) == torch.arange(len(users), device=scores.device)).float().mean()
        self.log_dict({'loss': loss, 'in_batch_hit': hit}, prog_bar=True)
        self.n_seen += len(users)
        self.last_loss = loss.detach()

    def configure_optimizers(self):
        tables = [self.user_emb.weight, self.item_emb.weight]
        towers = [*self.hour_emb.parameters(), *self.user_tower.parameters(), *self.item_tower.parameters()]
        return torch.optim.SparseAdam(tables, lr=2e-3), torch.optim.Adam(towers, lr=1e-3)


L.seed_everything(7)
dm = InteractionData(user_ids, item_ids, hours)
net = TwoTower(60_000, 25_000)
trainer = L.Trainer(max_epochs=1, accelerator='auto', log_every_n_steps=50, enable_checkpointing=False)
trainer.fit(net, datamodule=dm)
"""

CHANGES = (
    Change(
        "index whole batches",
        "batch_whole",
        edits={
            "        return DataLoader(self.dataset, batch_size=self.batch_size, shuffle=True, drop_last=True)\n": ""
            "        from torch.utils.data import BatchSampler, RandomSampler\n"
            "        sampler = BatchSampler(RandomSampler(self.dataset), self.batch_size, drop_last=True)\n"
            "        return DataLoader(self.dataset, sampler=sampler, batch_size=None)\n"
        },
    ),
    Change("two workers", "num_workers", edits={"drop_last=True)": "drop_last=True, num_workers=2)"}),
    Change(
        "fused Adam for the towers",
        "fused_optimizer",
        edits={"torch.optim.Adam(towers, lr=1e-3)": "torch.optim.Adam(towers, lr=1e-3, fused=True)"},
    ),
    Change(
        "no log per step, no progress bar",
        "fewer_logs",
        edits={
            "        hit = (scores.argmax(1) == torch.arange(len(users), device=scores.device)).float().mean()\n"
            "        self.log_dict({'loss': loss, 'in_batch_hit': hit}, prog_bar=True)\n": "",
            "enable_checkpointing=False)": "enable_checkpointing=False, logger=False, enable_progress_bar=False)",
        },
    ),
    Change("batches of 1024", "larger_batch", edits={"batch_size=512": "batch_size=1024"}),
    Change(
        "bfloat16",
        "precision",
        edits={"enable_checkpointing=False)": "enable_checkpointing=False, precision='bf16-mixed')"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="net.n_seen", loss="float(net.last_loss)", seconds=10)
