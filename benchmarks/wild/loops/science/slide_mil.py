"""Attention-based multiple-instance learning on features of whole slides, one bag per step, in Lightning with an AUROC."""

from pathlib import Path

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A file of patch features per slide, as feature extraction scripts save them, and a label each."""
    Path("features").mkdir()
    count = scaled(110, scale, 2)
    labels = {}
    for index in range(count):
        label = index % 2
        bag = torch.randn(int(torch.randint(250, 950, ())), 512)
        bag[: len(bag) // 20] += 0.5 * label
        torch.save(bag, f"features/slide_{index:03d}.pt")
        labels[f"slide_{index:03d}"] = label
    return {"labels": labels}


CELL = """
import lightning.pytorch as pl
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import BinaryAUROC


class BagDataset(Dataset):
    def __init__(self, root, labels):
        self.root = root
        self.slides = sorted(labels)
        self.labels = labels

    def __len__(self):
        return len(self.slides)

    def __getitem__(self, i):
        slide = self.slides[i]
        bag = torch.load(f'{self.root}/{slide}.pt')
        return bag, torch.tensor(float(self.labels[slide]))


class GatedAttention(nn.Module):
    def __init__(self, L=256, D=128):
        super().__init__()
        self.attention_V = nn.Sequential(nn.Linear(L, D), nn.Tanh())
        self.attention_U = nn.Sequential(nn.Linear(L, D), nn.Sigmoid())
        self.attention_w = nn.Linear(D, 1)

    def forward(self, H):
        A = self.attention_w(self.attention_V(H) * self.attention_U(H))
        return torch.softmax(A.transpose(1, 0), dim=1)


class ABMIL(pl.LightningModule):
    def __init__(self, in_dim=512, lr=2e-4, weight_decay=1e-5):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Sequential(nn.Linear(in_dim, 256), nn.ReLU(), nn.Dropout(0.25))
        self.attention = GatedAttention(256, 128)
        self.classifier = nn.Linear(256, 1)
        self.train_auc = BinaryAUROC()
        self.bags_seen = 0

    def forward(self, bag):
        H = self.embed(bag)
        A = self.attention(H)
        return self.classifier(A @ H).squeeze(), A

    def training_step(self, batch, batch_idx):
        bag, y = batch
        bag, y = bag.squeeze(0), y.squeeze(0)
        logit, _ = self(bag)
        loss = F.binary_cross_entropy_with_logits(logit, y)
        self.train_auc.update(torch.sigmoid(logit.detach()).unsqueeze(0), y.long().unsqueeze(0))
        self.log('train_loss', loss, on_step=False, on_epoch=True, batch_size=1)
        self.bags_seen += 1
        return loss

    def on_train_epoch_end(self):
        self.log('train_auc', self.train_auc.compute(), prog_bar=True)
        self.train_auc.reset()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr, weight_decay=self.hparams.weight_decay)


train_ds = BagDataset('features', labels)
train_dl = DataLoader(train_ds, batch_size=1, shuffle=True)
model = ABMIL()
trainer = pl.Trainer(max_epochs=5, accelerator='auto', enable_checkpointing=False, logger=False)
trainer.fit(model, train_dl)
final_loss = trainer.callback_metrics['train_loss']
"""

CHANGES = (
    Change(
        "bags stay in memory",
        "cache_items",
        edits={
            "        self.labels = labels\n": "        self.labels = labels\n        self.bags = {}\n",
            "        bag = torch.load(f'{self.root}/{slide}.pt')\n": "        if slide not in self.bags:\n"
            "            self.bags[slide] = torch.load(f'{self.root}/{slide}.pt')\n        bag = self.bags[slide]\n",
        },
    ),
    Change(
        "two persistent workers",
        "num_workers",
        edits={"shuffle=True)": "shuffle=True, num_workers=2, persistent_workers=True)"},
    ),
    Change("bfloat16", "precision", edits={"logger=False)": "logger=False, precision='bf16-mixed')"}),
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={"weight_decay=self.hparams.weight_decay)": "weight_decay=self.hparams.weight_decay, fused=True)"},
    ),
    Change("no progress bar", "fewer_logs", edits={"logger=False)": "logger=False, enable_progress_bar=False)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="model.bags_seen", loss="float(final_loss)", seconds=9)
