"""Labels of satellite chips from JPEG files in Lightning: a DataModule, torchmetrics on every step and ModelCheckpoint, as in Planet notebooks."""

from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

TAGS = [
    "agriculture",
    "artisinal_mine",
    "bare_ground",
    "blooming",
    "blow_down",
    "clear",
    "cloudy",
    "conventional_mine",
    "cultivation",
    "habitation",
    "haze",
    "partly_cloudy",
    "primary",
    "road",
    "selective_logging",
    "slash_burn",
    "water",
]


def prepare(scale: float) -> Namespace:
    """Chips whose colours and textures depend on their tags, and a CSV file that names the tags."""
    rng = np.random.default_rng(0)
    Path("train-jpg").mkdir()
    colours = rng.uniform(30, 220, (len(TAGS), 3))
    waves = rng.uniform(-0.4, 0.4, (len(TAGS), 2))
    y, x = np.mgrid[0:256, 0:256]
    textures = [np.sin(a * x + b * y)[..., None].astype(np.float32) for a, b in waves]
    rows = []
    for i in range(scaled(640, scale, 20)):
        tags = rng.choice(len(TAGS), rng.integers(1, 5), replace=False)
        image = np.mean([colours[t] + 25 * textures[t] for t in tags], axis=0)
        image += rng.normal(0, 12, (64, 64, 1)).repeat(4, 0).repeat(4, 1)
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(f"train-jpg/train_{i}.jpg", quality=90)
        rows.append({"image_name": f"train_{i}", "tags": " ".join(TAGS[t] for t in tags)})
    pd.DataFrame(rows).to_csv("train_v2.csv", index=False)
    return {}


CELL = """
import os
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchmetrics
import lightning as L
from PIL import Image
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, Dataset

CFG = dict(csv='train_v2.csv', img_dir='train-jpg', img_size=64, batch_size=16, num_workers=0, lr=1e-3, epochs=2)
LABELS = sorted({tag for tags in pd.read_csv(CFG['csv']).tags for tag in tags.split()})
MEAN, STD = np.array([0.485, 0.456, 0.406], dtype=np.float32), np.array([0.229, 0.224, 0.225], dtype=np.float32)

class PlanetDataset(Dataset):
    def __init__(self, df, img_dir, img_size, train=True):
        self.df = df.reset_index(drop=True)
        self.img_dir, self.img_size, self.train = img_dir, img_size, train

    def __len__(self):
        return len(self.df)

    def load(self, name):
        image = Image.open(os.path.join(self.img_dir, name + '.jpg')).convert('RGB')
        return image.resize((self.img_size, self.img_size), Image.BILINEAR)

    def __getitem__(self, idx):
        row = self.df.iloc[idx]
        image = self.load(row.image_name)
        if self.train:
            if np.random.rand() < 0.5:
                image = image.transpose(Image.FLIP_LEFT_RIGHT)
            if np.random.rand() < 0.5:
                image = image.transpose(Image.FLIP_TOP_BOTTOM)
            if np.random.rand() < 0.5:
                image = image.rotate(np.random.choice([90, 180, 270]))
        image = (np.asarray(image, dtype=np.float32) / 255. - MEAN) / STD
        target = np.zeros(len(LABELS), dtype=np.float32)
        for tag in row.tags.split():
            target[LABELS.index(tag)] = 1
        return torch.from_numpy(image.transpose(2, 0, 1)).contiguous(), torch.from_numpy(target)

class PlanetDataModule(L.LightningDataModule):
    def __init__(self, csv, img_dir, img_size, batch_size, num_workers):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage=None):
        df = pd.read_csv(self.hparams.csv)
        train_df, val_df = train_test_split(df, test_size=0.2, random_state=42)
        self.train_ds = PlanetDataset(train_df, self.hparams.img_dir, self.hparams.img_size, train=True)
        self.val_ds = PlanetDataset(val_df, self.hparams.img_dir, self.hparams.img_size, train=False)

    def train_dataloader(self):
        return DataLoader(self.train_ds, batch_size=self.hparams.batch_size, shuffle=True,
                          num_workers=self.hparams.num_workers)

    def val_dataloader(self):
        return DataLoader(self.val_ds, batch_size=self.hparams.batch_size, num_workers=self.hparams.num_workers)

class BasicBlock(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or inplanes != planes:
            self.shortcut = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))

class PlanetModel(L.LightningModule):
    def __init__(self, num_classes, lr, epochs):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(3, 24, 7, 2, 3, bias=False), nn.BatchNorm2d(24), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
            BasicBlock(24, 24), BasicBlock(24, 48, 2), BasicBlock(48, 96, 2), BasicBlock(96, 192, 2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, num_classes),
        )
        self.criterion = nn.BCEWithLogitsLoss()
        metrics = torchmetrics.MetricCollection({
            'f2': torchmetrics.classification.MultilabelFBetaScore(beta=2.0, num_labels=num_classes, threshold=0.2),
            'acc': torchmetrics.classification.MultilabelAccuracy(num_labels=num_classes),
            'auroc': torchmetrics.classification.MultilabelAUROC(num_labels=num_classes, thresholds=50),
        })
        self.train_metrics = metrics.clone(prefix='train_')
        self.val_metrics = metrics.clone(prefix='val_')
        self.samples, self.last_loss = 0, None

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        images, targets = batch
        logits = self(images)
        loss = self.criterion(logits, targets)
        output = self.train_metrics(logits.sigmoid(), targets.int())
        self.log('train_loss', loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log_dict(output)
        self.samples += len(images)
        self.last_loss = loss.detach()
        return loss

    def on_train_epoch_end(self):
        self.train_metrics.reset()

    def validation_step(self, batch, batch_idx):
        images, targets = batch
        logits = self(images)
        self.log('val_loss', self.criterion(logits, targets), prog_bar=True)
        self.val_metrics.update(logits.sigmoid(), targets.int())

    def on_validation_epoch_end(self):
        self.log_dict(self.val_metrics.compute(), prog_bar=True)
        self.val_metrics.reset()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.hparams.epochs)
        return [optimizer], [scheduler]

L.seed_everything(42)
dm = PlanetDataModule(CFG['csv'], CFG['img_dir'], CFG['img_size'], CFG['batch_size'], CFG['num_workers'])
model = PlanetModel(len(LABELS), CFG['lr'], CFG['epochs'])
trainer = L.Trainer(
    max_epochs=CFG['epochs'],
    accelerator='auto',
    logger=CSVLogger('logs', name='planet'),
    log_every_n_steps=5,
    callbacks=[
        ModelCheckpoint(dirpath='checkpoints', monitor='val_f2', mode='max', save_top_k=2,
                        filename='{epoch}-{val_f2:.3f}'),
        EarlyStopping(monitor='val_loss', patience=5),
        LearningRateMonitor('epoch'),
    ],
)
trainer.fit(model, dm)
"""

CHANGES = (
    Change(
        "resized images kept in memory",
        "cache_items",
        edits={
            "self.train = img_dir, img_size, train\n": "self.train = img_dir, img_size, train\n"
            "        self.cache = {name: self.load(name) for name in self.df.image_name}\n",
            "image = self.load(row.image_name)": "image = self.cache[row.image_name]",
        },
    ),
    Change(
        "JPEG decoded at the small size",
        "vectorize_items",
        edits={
            "image = Image.open(os.path.join(self.img_dir, name + '.jpg')).convert('RGB')": ""
            "image = Image.open(os.path.join(self.img_dir, name + '.jpg'))\n"
            "        image.draft('RGB', (self.img_size, self.img_size))"
        },
    ),
    Change("two workers", "num_workers", edits={"num_workers=0, lr": "num_workers=2, lr"}),
    Change(
        "training metrics at the end of the epoch",
        "fewer_logs",
        edits={
            "output = self.train_metrics(": "self.train_metrics.update(",
            "        self.log_dict(output)\n": "",
            "        self.train_metrics.reset()": "        self.log_dict(self.train_metrics.compute())\n"
            "        self.train_metrics.reset()",
        },
    ),
    Change("batches of 32", "larger_batch", edits={"batch_size=16": "batch_size=32"}),
    Change("bf16-mixed", "precision", edits={"accelerator='auto',": "accelerator='auto', precision='bf16-mixed',"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="model.samples", loss="model.last_loss.item()", seconds=7)
