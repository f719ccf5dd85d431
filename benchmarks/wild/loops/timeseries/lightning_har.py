"""Human activities from smartphone inertial signals by a DeepConvLSTM in Lightning, as in public HAR repositories."""

from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

SIGNALS = [f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"]


def prepare(scale: float) -> Namespace:
    """Windows of 128 readings of nine signals and their activity, as arrays in the folders train, val and test."""
    rng = np.random.default_rng(0)
    activities = 6
    frequency, amplitude = rng.uniform(0.02, 0.2, (activities, 9)), rng.gamma(2, 0.25, (activities, 9))
    amplitude[3:] *= 0.1
    offset = rng.normal(0, 0.4, (activities, 9))
    for split, count in (("train", scaled(1536, scale, 256)), ("val", scaled(384, scale, 64)), ("test", 128)):
        folder = Path("data/har") / split
        folder.mkdir(parents=True)
        y = rng.integers(0, activities, count)
        gait = rng.normal(1, 0.12, (count, 1, 1))
        phase = rng.uniform(0, 2 * np.pi, (count, 1, 9))
        time = np.arange(128)[None, :, None]
        waves = np.sin(2 * np.pi * frequency[y][:, None] * gait * time + phase) * amplitude[y][:, None]
        x = waves + offset[y][:, None] + rng.normal(0, 0.25, (count, 128, 9))
        for index, signal in enumerate(SIGNALS):
            np.save(folder / f"{signal}.npy", x[:, :, index])
        np.save(folder / "y.npy", y + 1)
    return {}


CELL = """
from pathlib import Path

import lightning as L
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy, MulticlassAUROC, MulticlassConfusionMatrix, MulticlassF1Score, MulticlassPrecision,
    MulticlassRecall,
)

ACTIVITIES = ['WALKING', 'WALKING_UPSTAIRS', 'WALKING_DOWNSTAIRS', 'SITTING', 'STANDING', 'LAYING']
SIGNALS = [f'{kind}_{axis}' for kind in ('body_acc', 'body_gyro', 'total_acc') for axis in 'xyz']

class HARDataset(Dataset):
    def __init__(self, root, split, mean=None, std=None, augment=False):
        folder = Path(root) / split
        self.x = np.stack([np.load(folder / f'{signal}.npy') for signal in SIGNALS], axis=-1)
        self.y = np.load(folder / 'y.npy') - 1
        self.mean = self.x.mean(axis=(0, 1)) if mean is None else mean
        self.std = self.x.std(axis=(0, 1)) if std is None else std
        self.augment = augment

    def __len__(self):
        return len(self.y)

    def __getitem__(self, idx):
        window = (self.x[idx] - self.mean) / self.std
        if self.augment:
            window = window * np.random.normal(1.0, 0.1, (1, window.shape[1]))
            window = window + np.random.normal(0.0, 0.05, window.shape)
        window = torch.tensor(window, dtype=torch.float32).transpose(0, 1)
        return window, torch.tensor(self.y[idx], dtype=torch.long)

class HARDataModule(L.LightningDataModule):
    def __init__(self, root='data/har', batch_size=64, num_workers=0):
        super().__init__()
        self.save_hyperparameters()
        self.batch_size = batch_size

    def setup(self, stage=None):
        self.train_set = HARDataset(self.hparams.root, 'train', augment=True)
        stats = dict(mean=self.train_set.mean, std=self.train_set.std)
        self.val_set = HARDataset(self.hparams.root, 'val', **stats)
        self.test_set = HARDataset(self.hparams.root, 'test', **stats)

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.batch_size, shuffle=True, drop_last=True,
                          num_workers=self.hparams.num_workers)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=self.batch_size, num_workers=self.hparams.num_workers)

    def test_dataloader(self):
        return DataLoader(self.test_set, batch_size=self.batch_size, num_workers=self.hparams.num_workers)

class DeepConvLSTM(nn.Module):
    def __init__(self, in_channels, num_classes, filters=64, hidden=96, dropout=0.5):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(in_channels, filters, 5, padding=2), nn.BatchNorm1d(filters), nn.ReLU(),
            nn.Conv1d(filters, filters, 5, padding=2), nn.BatchNorm1d(filters), nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(filters, filters, 5, padding=2), nn.BatchNorm1d(filters), nn.ReLU(),
        )
        self.lstm = nn.LSTM(filters, hidden, num_layers=2, batch_first=True, dropout=0.2)
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(hidden, num_classes))

    def forward(self, x):
        features = self.conv(x).transpose(1, 2)
        output, _ = self.lstm(features)
        return self.head(output[:, -1])

class HARClassifier(L.LightningModule):
    def __init__(self, num_classes=6, lr=1e-3, weight_decay=1e-4, label_smoothing=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.net = DeepConvLSTM(len(SIGNALS), num_classes)
        metrics = MetricCollection({
            'acc': MulticlassAccuracy(num_classes, average='micro'),
            'precision': MulticlassPrecision(num_classes, average='macro'),
            'recall': MulticlassRecall(num_classes, average='macro'),
            'f1': MulticlassF1Score(num_classes, average='macro'),
            'auroc': MulticlassAUROC(num_classes, average='macro'),
        })
        self.train_metrics = metrics.clone(prefix='train/')
        self.val_metrics = metrics.clone(prefix='val/')
        self.test_metrics = metrics.clone(prefix='test/')
        self.confusion = MulticlassConfusionMatrix(num_classes)

    def forward(self, x):
        return self.net(x)

    def step(self, batch):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y, label_smoothing=self.hparams.label_smoothing)
        return loss, logits.softmax(dim=-1), y

    def training_step(self, batch, batch_idx):
        loss, probs, y = self.step(batch)
        self.log('train/loss', loss, on_step=True, on_epoch=True, prog_bar=True)
        output = self.train_metrics(probs, y)
        self.log_dict(output, on_step=True, on_epoch=False)
        return loss

    def on_train_epoch_end(self):
        epoch_values = self.train_metrics.compute()
        self.log_dict({f'{name}_epoch': value for name, value in epoch_values.items()})
        self.train_metrics.reset()

    def validation_step(self, batch, batch_idx):
        loss, probs, y = self.step(batch)
        self.log('val/loss', loss, prog_bar=True)
        self.val_metrics.update(probs, y)
        self.confusion.update(probs, y)

    def on_validation_epoch_end(self):
        self.log_dict(self.val_metrics.compute())
        self.val_metrics.reset()

    def test_step(self, batch, batch_idx):
        loss, probs, y = self.step(batch)
        self.test_metrics.update(probs, y)
        self.log('test/loss', loss)

    def on_test_epoch_end(self):
        self.log_dict(self.test_metrics.compute())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=self.hparams.weight_decay)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode='min', factor=0.5, patience=2)
        return {'optimizer': optimizer, 'lr_scheduler': {'scheduler': scheduler, 'monitor': 'val/loss'}}

class ConfusionPrinter(Callback):
    def on_validation_epoch_end(self, trainer, pl_module):
        matrix = pl_module.confusion.compute()
        pl_module.confusion.reset()
        if trainer.sanity_checking:
            return
        print('\\n' + ' ' * 20 + ' '.join(f'{name[:7]:>7}' for name in ACTIVITIES))
        for name, row in zip(ACTIVITIES, matrix):
            print(f'{name:<20}' + ' '.join(f'{int(count):7d}' for count in row))

L.seed_everything(7, workers=True)
datamodule = HARDataModule(batch_size=64)
model = HARClassifier(lr=1e-3)

callbacks = [
    ModelCheckpoint(dirpath='checkpoints', monitor='val/f1', mode='max', save_top_k=1, save_last=True),
    EarlyStopping(monitor='val/loss', patience=8, mode='min'),
    LearningRateMonitor(logging_interval='step'),
    ConfusionPrinter(),
]
trainer = L.Trainer(
    max_epochs=4,
    accelerator='auto',
    callbacks=callbacks,
    logger=CSVLogger('logs', name='har'),
    log_every_n_steps=5,
    gradient_clip_val=1.0,
    enable_progress_bar=False,
)
trainer.fit(model, datamodule=datamodule)
train_loss = trainer.callback_metrics['train/loss_epoch'].item()
samples_seen = trainer.global_step * datamodule.batch_size
trainer.test(model, datamodule=datamodule, ckpt_path='best')
"""

ITEM = CELL[CELL.index("        window = (self.x[idx]") : CELL.index("class HARDataModule")]
WHOLE = """        return idx

    def __getitems__(self, indices):
        x = self.tensor[indices]
        if self.augment:
            x = x * (1.0 + 0.1 * torch.randn(len(x), x.shape[1], 1)) + 0.05 * torch.randn_like(x)
        return x, self.labels[indices]

"""

CHANGES = (
    Change(
        "windows indexed and augmented by the batch",
        "batch_whole",
        edits={
            "        self.augment = augment\n": ""
            "        self.augment = augment\n"
            "        self.tensor = torch.tensor((self.x - self.mean) / self.std, dtype=torch.float32)\n"
            "        self.tensor = self.tensor.transpose(1, 2).contiguous()\n"
            "        self.labels = torch.tensor(self.y, dtype=torch.long)\n",
            ITEM: WHOLE,
            "shuffle=True, drop_last=True,": "shuffle=True, drop_last=True, collate_fn=lambda batch: batch,",
            "DataLoader(self.val_set, ": "DataLoader(self.val_set, collate_fn=lambda batch: batch, ",
            "DataLoader(self.test_set, ": "DataLoader(self.test_set, collate_fn=lambda batch: batch, ",
        },
    ),
    Change(
        "training metrics once per epoch",
        "fewer_logs",
        edits={
            "        output = self.train_metrics(probs, y)\n"
            "        self.log_dict(output, on_step=True, on_epoch=False)\n": ""
            "        self.train_outputs.append((probs.detach(), y))\n",
            "        epoch_values = self.train_metrics.compute()\n": ""
            "        probs, y = (torch.cat(parts) for parts in zip(*self.train_outputs))\n"
            "        self.train_outputs.clear()\n"
            "        self.train_metrics.update(probs, y)\n"
            "        epoch_values = self.train_metrics.compute()\n",
            "        self.confusion = MulticlassConfusionMatrix(num_classes)\n": ""
            "        self.confusion = MulticlassConfusionMatrix(num_classes)\n"
            "        self.train_outputs = []\n",
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        logits = self(x)\n"
            "        loss = F.cross_entropy(logits, y, label_smoothing=self.hparams.label_smoothing)\n": ""
            "        with torch.autocast(self.device.type, dtype=torch.bfloat16):\n"
            "            logits = self(x)\n"
            "            loss = F.cross_entropy(logits, y, label_smoothing=self.hparams.label_smoothing)\n"
            "        logits = logits.float()\n"
        },
    ),
    Change("batches of 256", "larger_batch", edits={"HARDataModule(batch_size=64)": "HARDataModule(batch_size=256)"}),
    Change(
        "two workers",
        "num_workers",
        edits={"HARDataModule(batch_size=64)": "HARDataModule(batch_size=64, num_workers=2)"},
    ),
    Change(
        "fused AdamW",
        "fused_optimizer",
        edits={"weight_decay=self.hparams.weight_decay)": "weight_decay=self.hparams.weight_decay, fused=True)"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="samples_seen", loss="train_loss", seconds=8)
