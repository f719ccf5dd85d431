"""Activity recognition with Lightning and metrics written in Python, which every training step updates and logs."""

import numpy as np
from torch import Tensor, nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class SensorNet(nn.Module):
    """Convolutions over time, a GRU, and a linear layer."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(channels, 32, 5, 2), nn.ReLU(), nn.Conv1d(32, 32, 5, 2), nn.ReLU())
        self.gru, self.out = nn.GRU(32, 48, batch_first=True), nn.Linear(48, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of windows of shape (batch, time, channels)."""
        features, _ = self.gru(self.conv(x.transpose(1, 2)).transpose(1, 2))
        out: Tensor = self.out(features[:, -1])
        return out


def prepare(scale: float) -> Namespace:
    """Windows of 128 samples of nine sensors, as in UCI HAR."""
    rng = np.random.default_rng(0)
    train, val = scaled(7488, scale, 192), scaled(1920, scale, 64)
    return {
        "train_x": rng.normal(size=(train, 128, 9)).astype(np.float32),
        "train_y": rng.integers(0, 6, train),
        "val_x": rng.normal(size=(val, 128, 9)).astype(np.float32),
        "val_y": rng.integers(0, 6, val),
        "SensorNet": SensorNet,
    }


CELL = """
import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

class HARDataset(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, idx):
        return torch.tensor(self.x[idx]), torch.tensor(self.y[idx])

class ClassificationMetrics:
    def __init__(self, num_classes):
        self.num_classes = num_classes
        self.reset()

    def reset(self):
        self.matrix = [[0] * self.num_classes for _ in range(self.num_classes)]

    def update(self, logits, target):
        for p, t in zip(logits.argmax(dim=1), target):
            self.matrix[t.item()][p.item()] += 1

    def compute(self):
        n, tps, precision, recall, f1 = self.num_classes, 0, 0.0, 0.0, 0.0
        for c in range(n):
            tp, predicted, actual = self.matrix[c][c], sum(row[c] for row in self.matrix), sum(self.matrix[c])
            tps += tp
            precision += tp / max(1, predicted) / n
            recall += tp / max(1, actual) / n
            f1 += 2 * tp / max(1, predicted + actual) / n
        return {'acc': tps / max(1, sum(map(sum, self.matrix))), 'precision': precision, 'recall': recall, 'f1': f1}

class LitHAR(L.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.model = SensorNet(9, 6)
        self.train_metrics, self.val_metrics = ClassificationMetrics(6), ClassificationMetrics(6)
        self.n_windows = 0

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.model(x)
        loss = F.cross_entropy(logits, y)
        self.train_metrics.update(logits, y)
        self.log('train_loss', loss, prog_bar=True)
        for name, value in self.train_metrics.compute().items():
            self.log(f'train_{name}', value, prog_bar=True)
        self.n_windows += len(y)
        self.last = loss.detach()
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self.model(x)
        self.val_metrics.update(logits, y)
        self.log('val_loss', F.cross_entropy(logits, y), prog_bar=True)

    def on_train_epoch_end(self):
        self.train_metrics.reset()

    def on_validation_epoch_end(self):
        self.log_dict({f'val_{k}': v for k, v in self.val_metrics.compute().items()}, prog_bar=True)
        self.val_metrics.reset()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)

train_loader = DataLoader(HARDataset(train_x, train_y), batch_size=64, shuffle=True)
val_loader = DataLoader(HARDataset(val_x, val_y), batch_size=64)
lit = LitHAR()
trainer = L.Trainer(max_epochs=5, precision='32-true', num_sanity_val_steps=0, log_every_n_steps=10)
trainer.fit(lit, train_loader, val_loader)
"""

CHANGES = (
    Change(
        "count with bincount",
        "remove_python",
        edits={
            """        for p, t in zip(logits.argmax(dim=1), target):
            self.matrix[t.item()][p.item()] += 1
""": """        counts = torch.bincount(target * self.num_classes + logits.argmax(dim=1), minlength=self.num_classes ** 2)
        for row, more in zip(self.matrix, counts.view(self.num_classes, -1).tolist()):
            row[:] = [a + b for a, b in zip(row, more)]
""",
        },
    ),
    Change(
        "training metrics per epoch",
        "fewer_logs",
        edits={
            """        for name, value in self.train_metrics.compute().items():
            self.log(f'train_{name}', value, prog_bar=True)
""": "",
            "    def on_train_epoch_end(self):\n": "    def on_train_epoch_end(self):\n"
            "        self.log_dict({f'train_{k}': v for k, v in self.train_metrics.compute().items()}, prog_bar=True)\n",
        },
    ),
    Change(
        "two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2, persistent_workers=True)"}
    ),
    Change("batches of 192", "larger_batch", edits={"batch_size=64, shuffle": "batch_size=192, shuffle"}),
    Change("bf16", "precision", edits={"'32-true'": "'bf16-mixed'"}),
    Change("fused AdamW", "fused_optimizer", edits={"lr=self.hparams.lr)": "lr=self.hparams.lr, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="lit.n_windows", loss="lit.last.item()", seconds=6)
