"""Remaining life of engines by a small transformer in Lightning, which logs the norms of gradients as its docs show."""

import numpy as np
import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Windows of 30 cycles with 14 sensors, and the cycles that are left, shaped like C-MAPSS."""
    rng = np.random.default_rng(0)
    count = scaled(17920, scale, 256)
    wear = rng.random((count, 1, 1)).astype(np.float32)
    drift = rng.normal(0, 1, (1, 1, 14)).astype(np.float32)
    noise = rng.normal(0, 0.3, (count, 30, 14)).astype(np.float32)
    windows = wear * drift + np.linspace(0, 0.1, 30, dtype=np.float32)[:, None] + noise
    return {"windows": torch.from_numpy(windows), "rul": torch.from_numpy(124 * (1 - wear[:, 0, 0]))}


CELL = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
import lightning as L
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from torch.utils.data import DataLoader, TensorDataset, random_split

L.seed_everything(0, workers=True)

class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=64):
        super().__init__()
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer('pe', pe)

    def forward(self, x):
        return x + self.pe[:x.size(1)]

class RULTransformer(L.LightningModule):
    def __init__(self, n_sensors=14, d_model=48, nhead=4, num_layers=2, lr=1e-3, total_steps=100):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Linear(n_sensors, d_model)
        self.pos = PositionalEncoding(d_model)
        layer = nn.TransformerEncoderLayer(d_model, nhead, dim_feedforward=96, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers)
        self.head = nn.Sequential(nn.Linear(d_model, 32), nn.ReLU(), nn.Linear(32, 1))
        self.seen = 0

    def forward(self, x):
        h = self.encoder(self.pos(self.embed(x)))
        return self.head(h.mean(dim=1)).squeeze(-1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        y_hat = self(x)
        loss = F.mse_loss(y_hat, y / 125.0)
        self.log('train/loss', loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log('train/rmse', torch.sqrt(loss) * 125.0, on_step=True, on_epoch=True, prog_bar=True)
        self.seen += len(x)
        self.final = loss.detach()
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        rmse = torch.sqrt(F.mse_loss(self(x), y / 125.0)) * 125.0
        self.log('val/rmse', rmse, prog_bar=True)

    def on_before_optimizer_step(self, optimizer):
        # vanishing gradients?
        norms = grad_norm(self, norm_type=2)
        self.log_dict(norms)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=1e-2)
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=self.hparams.lr, total_steps=self.hparams.total_steps)
        return {'optimizer': opt, 'lr_scheduler': {'scheduler': sched, 'interval': 'step'}}

batch_size = 64
dataset = TensorDataset(windows, rul)
n_val = len(dataset) // 8
train_set, val_set = random_split(dataset, [len(dataset) - n_val, n_val])
train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True)
val_loader = DataLoader(val_set, batch_size=256)

model = RULTransformer(total_steps=len(train_loader))
trainer = L.Trainer(
    max_epochs=1,
    gradient_clip_val=1.0,
    logger=CSVLogger('logs', name='rul'),
    callbacks=[LearningRateMonitor(logging_interval='step')],
    log_every_n_steps=10,
)
trainer.fit(model, train_loader, val_loader)
"""

CHANGES = (
    Change(
        "no norms of gradients",
        "fewer_logs",
        edits={"        norms = grad_norm(self, norm_type=2)\n        self.log_dict(norms)\n": "        pass\n"},
    ),
    Change(
        "norms of gradients at every fiftieth step",
        "fewer_logs",
        edits={
            "        norms = grad_norm(self, norm_type=2)\n        self.log_dict(norms)\n": ""
            "        if self.global_step % 50 == 0:\n            self.log_dict(grad_norm(self, norm_type=2))\n"
        },
    ),
    Change(
        "one metric, without its mean over the epoch",
        "fewer_logs",
        edits={
            "        self.log('train/loss', loss, on_step=True, on_epoch=True, prog_bar=True)\n": ""
            "        self.log('train/loss', loss, prog_bar=True)\n",
            "        self.log('train/rmse', torch.sqrt(loss) * 125.0, on_step=True, on_epoch=True, prog_bar=True)\n": "",
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("batches of 256", "larger_batch", edits={"batch_size = 64": "batch_size = 256"}),
    Change("fused AdamW", "fused_optimizer", edits={"weight_decay=1e-2)": "weight_decay=1e-2, fused=True)"}),
    Change(
        "bf16-mixed", "precision", edits={"    max_epochs=1,\n": "    max_epochs=1,\n    precision='bf16-mixed',\n"}
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="model.seen", loss="model.final.item()", seconds=10)
