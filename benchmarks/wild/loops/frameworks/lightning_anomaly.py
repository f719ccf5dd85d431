"""A temporal convolutional network in Lightning whose Trainer still detects anomalies, as after a hunt for NaN."""

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """The adding problem: sequences of numbers with two marks, and the sum of the marked numbers."""
    count, length = scaled(1664, scale, 128), 96
    marks = torch.zeros(count, length)
    marks.scatter_(1, torch.rand(count, length).argsort(1)[:, :2], 1.0)
    numbers = torch.rand(count, length)
    return {"X": torch.stack([numbers, marks], 1), "Y": (numbers * marks).sum(1, keepdim=True)}


CELL = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader, TensorDataset
import lightning.pytorch as pl

BATCH_SIZE = 32

class Chomp1d(nn.Module):
    def __init__(self, chomp_size):
        super().__init__()
        self.chomp_size = chomp_size

    def forward(self, x):
        return x[:, :, :-self.chomp_size].contiguous()

class TemporalBlock(nn.Module):
    def __init__(self, n_inputs, n_outputs, kernel_size, dilation, dropout=0.1):
        super().__init__()
        padding = (kernel_size - 1) * dilation
        self.net = nn.Sequential(
            weight_norm(nn.Conv1d(n_inputs, n_outputs, kernel_size, padding=padding, dilation=dilation)),
            Chomp1d(padding), nn.ReLU(), nn.Dropout(dropout),
            weight_norm(nn.Conv1d(n_outputs, n_outputs, kernel_size, padding=padding, dilation=dilation)),
            Chomp1d(padding), nn.ReLU(), nn.Dropout(dropout))
        self.downsample = nn.Conv1d(n_inputs, n_outputs, 1) if n_inputs != n_outputs else None

    def forward(self, x):
        res = x if self.downsample is None else self.downsample(x)
        return F.relu(self.net(x) + res)

class TCN(pl.LightningModule):
    def __init__(self, channels=(24, 24, 24, 24, 24), kernel_size=4, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        layers = []
        for i, c in enumerate(channels):
            layers.append(TemporalBlock(2 if i == 0 else channels[i - 1], c, kernel_size, 2 ** i))
        self.tcn = nn.Sequential(*layers)
        self.linear = nn.Linear(channels[-1], 1)
        self.n_seen = 0

    def forward(self, x):
        return self.linear(self.tcn(x)[:, :, -1])

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self(x), y)
        self.log('train_loss', loss)
        self.n_seen += len(x)
        self.last_loss = loss.detach()
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)

train_loader = DataLoader(TensorDataset(X, Y), batch_size=BATCH_SIZE, shuffle=True)
model = TCN()
trainer = pl.Trainer(max_epochs=2, accelerator='auto', gradient_clip_val=0.5, detect_anomaly=True,
                     enable_checkpointing=False)
trainer.fit(model, train_loader)
"""

CHANGES = (
    Change("no anomaly detection", "other", edits={"detect_anomaly=True": "detect_anomaly=False"}),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("batches of 128", "larger_batch", edits={"BATCH_SIZE = 32": "BATCH_SIZE = 128"}),
    Change(
        "no logger, no progress bar",
        "fewer_logs",
        edits={
            "        self.log('train_loss', loss)\n": "",
            "enable_checkpointing=False": "enable_checkpointing=False, logger=False, enable_progress_bar=False",
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=self.hparams.lr)": "lr=self.hparams.lr, fused=True)"}),
    Change("one thread", "threads", edits={"BATCH_SIZE = 32": "BATCH_SIZE = 32\ntorch.set_num_threads(1)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="model.n_seen", loss="model.last_loss.item()", seconds=6)
