"""A Lightning module trained with the Trainer's defaults (logger, progress bar, checkpoint), as in Lightning's first steps."""

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Flat digits and labels in memory."""
    count = scaled(12_800, scale, 32)
    return {"images": torch.rand(count, 784), "targets": torch.randint(0, 10, (count,))}


CELL = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
import lightning as L

BATCH_SIZE = 32

class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 28 * 28))
        self.classifier = nn.Linear(3, 10)
        self.seen = 0

    def training_step(self, batch, batch_idx):
        x, y = batch
        z = self.encoder(x)
        x_hat = self.decoder(z)
        rec_loss = F.mse_loss(x_hat, x)
        cls_loss = F.cross_entropy(self.classifier(z), y)
        loss = rec_loss + 0.1 * cls_loss
        self.log('rec_loss', rec_loss, prog_bar=True)
        self.log('cls_loss', cls_loss, prog_bar=True)
        self.log('train_loss', loss, prog_bar=True, on_step=True, on_epoch=True)
        self.seen += x.size(0)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

train_loader = DataLoader(TensorDataset(images, targets), batch_size=BATCH_SIZE, shuffle=True)
autoencoder = LitAutoEncoder()
trainer = L.Trainer(max_epochs=2, accelerator='auto')
trainer.fit(autoencoder, train_loader)
"""

CHANGES = (
    Change(
        "no logging per step, no progress bar",
        "fewer_logs",
        edits={
            "        self.log('rec_loss', rec_loss, prog_bar=True)\n        self.log('cls_loss', cls_loss, prog_bar=True)\n": "",
            "        self.log('train_loss', loss, prog_bar=True, on_step=True, on_epoch=True)\n": "",
            "accelerator='auto')": "accelerator='auto', logger=False, enable_progress_bar=False)",
        },
    ),
    Change("batches of 128", "larger_batch", edits={"BATCH_SIZE = 32": "BATCH_SIZE = 128"}),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change(
        "index whole batches",
        "batch_whole",
        edits={
            "train_loader = DataLoader(TensorDataset(images, targets), batch_size=BATCH_SIZE, shuffle=True)": ""
            "train_set = TensorDataset(images, targets)\nsampler = torch.utils.data.BatchSampler("
            "torch.utils.data.RandomSampler(train_set), BATCH_SIZE, False)\n"
            "train_loader = DataLoader(train_set, sampler=sampler, batch_size=None)"
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
)

LOOP = Loop(
    __doc__,
    prepare,
    CELL,
    CHANGES,
    samples="autoencoder.seen",
    loss="((autoencoder.decoder(autoencoder.encoder(images)) - images) ** 2).mean().item()",
    seconds=6,
)
