"""A Lightning image classifier that validates often, with workers that every validation starts anew and torchmetrics."""

import torch
from torch import nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def small_cnn() -> nn.Module:
    """A few convolutions."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def prepare(scale: float) -> Namespace:
    """Images of 48 by 48 pixels as bytes."""
    count = scaled(4800, scale, 320)
    images = torch.randint(0, 256, (count, 48, 48, 3), dtype=torch.uint8).numpy()
    labels = torch.randint(0, 10, (count,)).tolist()
    return {
        "train_images": images,
        "train_labels": labels,
        "val_images": images[:640],
        "val_labels": labels[:640],
        "small_cnn": small_cnn,
    }


CELL = """
import numpy as np
import torch
import torch.nn.functional as F
import torchmetrics
import lightning as L
from torch.utils.data import DataLoader, Dataset

class ImageDataset(Dataset):
    def __init__(self, images, labels, train):
        self.images, self.labels, self.train = images, labels, train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        x = self.images[i].astype(np.float32) / 255.
        if self.train and np.random.rand() < 0.5:
            x = x[:, ::-1]
        x = (x - np.array([0.49, 0.48, 0.45])) / np.array([0.25, 0.24, 0.26])
        return torch.tensor(x.transpose(2, 0, 1).copy(), dtype=torch.float32), self.labels[i]

class DataModule(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(ImageDataset(train_images, train_labels, True), batch_size=32, shuffle=True, num_workers=0)

    def val_dataloader(self):
        return DataLoader(ImageDataset(val_images, val_labels, False), batch_size=32, num_workers=2)

class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = small_cnn()
        self.train_acc = torchmetrics.Accuracy(task='multiclass', num_classes=10)
        self.val_acc = torchmetrics.Accuracy(task='multiclass', num_classes=10)
        self.n_images = 0

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        loss = F.cross_entropy(logits, y)
        self.train_acc(logits, y)
        self.log('train_loss', loss)
        self.log('train_acc', self.train_acc, on_step=True, on_epoch=False)
        self.n_images += len(y)
        self.last = loss.item()
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self.net(x)
        self.val_acc(logits, y)
        self.log('val_loss', F.cross_entropy(logits, y), prog_bar=True)
        self.log('val_acc', self.val_acc, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

model = Classifier()
trainer = L.Trainer(max_epochs=1, val_check_interval=0.1, num_sanity_val_steps=0)
trainer.fit(model, datamodule=DataModule())
"""

CHANGES = (
    Change("validate once per epoch", "eval_less_often", edits={"val_check_interval=0.1": "val_check_interval=1.0"}),
    Change(
        "persistent workers",
        "persistent_workers",
        edits={"batch_size=32, num_workers=2)": "batch_size=32, num_workers=2, persistent_workers=True)"},
    ),
    Change(
        "no workers for validation",
        "num_workers",
        edits={"batch_size=32, num_workers=2)": "batch_size=32, num_workers=0)"},
    ),
    Change(
        "two workers for training", "num_workers", edits={"shuffle=True, num_workers=0": "shuffle=True, num_workers=2"}
    ),
    Change(
        "fewer metrics",
        "fewer_logs",
        edits={
            "        self.train_acc(logits, y)\n        self.log('train_loss', loss)\n": "",
            "        self.log('train_acc', self.train_acc, on_step=True, on_epoch=False)\n": "",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="model.n_images", loss="model.last", seconds=6)
