"""Remaining useful life of engines in Lightning, with a data module, callbacks and a best checkpoint."""

from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Runs to failure of engines: three settings and 21 sensors per cycle, some constant, in space-separated files."""
    rng = np.random.default_rng(0)
    level, slope = rng.uniform(2, 600, 21), rng.normal(0, 1, 21)
    constant = np.isin(np.arange(21), [0, 4, 5, 9, 15, 17, 18])
    slope[constant] = 0
    spread = np.where(constant, 0, 0.4)

    def run(unit: int, length: int, shown: int) -> list[str]:
        cycles = np.arange(1, shown + 1)
        wear = np.exp(4 * (cycles / length - 1)) * rng.uniform(2, 3) + rng.uniform(0, 0.3)
        sensors = level + wear[:, None] * slope + spread * rng.normal(0, 1, (shown, 21))
        settings = np.column_stack([rng.normal(0, 0.002, (shown, 2)), np.full(shown, 100.0)])
        return [
            f"{unit} {cycle} " + " ".join(f"{x:.4f}" for x in [*setting, *row]) + "  "
            for cycle, setting, row in zip(cycles, settings, sensors, strict=True)
        ]

    train, test, remaining = [], [], []
    for unit in range(1, scaled(20, scale, 4) + 1):
        length = int(rng.integers(128, 300))
        train += run(unit, length, length)
    for unit in range(1, scaled(20, scale, 4) + 1):
        length = int(rng.integers(128, 300))
        shown = int(rng.integers(40, length - 5))
        test += run(unit, length, shown)
        remaining.append(str(length - shown))
    folder = Path("CMAPSSData")
    folder.mkdir()
    (folder / "train_FD001.txt").write_text("\n".join(train) + "\n")
    (folder / "test_FD001.txt").write_text("\n".join(test) + "\n")
    (folder / "RUL_FD001.txt").write_text("\n".join(remaining) + "\n")
    return {}


CELL = """
import os
import lightning as L
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.model_selection import GroupShuffleSplit
from sklearn.preprocessing import MinMaxScaler
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MeanAbsoluteError, MeanSquaredError

L.seed_everything(42)

WINDOW = 30
MAX_RUL = 125
BATCH_SIZE = 64
MAX_EPOCHS = 3
COLUMNS = (['unit', 'cycle', 'setting_1', 'setting_2', 'setting_3'] + [f's_{i}' for i in range(1, 22)])
DROPPED = ['setting_3', 's_1', 's_5', 's_6', 's_10', 's_16', 's_18', 's_19']


class TurbofanDataset(Dataset):
    def __init__(self, df, features, window=WINDOW, last_only=False):
        self.features = features
        self.window = window
        self.units = {unit: group.reset_index(drop=True) for unit, group in df.groupby('unit')}
        self.index = []
        for unit, group in self.units.items():
            ends = [len(group)] if last_only else range(window, len(group) + 1)
            self.index.extend((unit, end) for end in ends)

    def __len__(self):
        return len(self.index)

    def __getitem__(self, idx):
        unit, end = self.index[idx]
        rows = self.units[unit].iloc[end - self.window:end]
        x = torch.tensor(rows[self.features].values, dtype=torch.float32)
        y = torch.tensor(rows['RUL'].iloc[-1], dtype=torch.float32)
        return x, y


class TurbofanDataModule(L.LightningDataModule):
    def __init__(self, data_dir='CMAPSSData', subset='FD001', batch_size=BATCH_SIZE, num_workers=2):
        super().__init__()
        self.save_hyperparameters()
        self.features = [c for c in COLUMNS if c not in DROPPED + ['unit', 'cycle']]

    def read(self, kind):
        path = os.path.join(self.hparams.data_dir, f'{kind}_{self.hparams.subset}.txt')
        return pd.read_csv(path, sep=r'\\s+', header=None, names=COLUMNS)

    def setup(self, stage=None):
        train = self.read('train')
        train['RUL'] = train.groupby('unit')['cycle'].transform('max') - train['cycle']
        test = self.read('test')
        rul = pd.read_csv(os.path.join(self.hparams.data_dir, f'RUL_{self.hparams.subset}.txt'), header=None)[0]
        last = test.groupby('unit')['cycle'].transform('max') + test['unit'].map(lambda u: rul[u - 1])
        test['RUL'] = last - test['cycle']
        for df in (train, test):
            df['RUL'] = df['RUL'].clip(upper=MAX_RUL)

        splitter = GroupShuffleSplit(n_splits=1, test_size=0.25, random_state=42)
        train_rows, val_rows = next(splitter.split(train, groups=train['unit']))
        scaler = MinMaxScaler(feature_range=(-1, 1)).fit(train.iloc[train_rows][self.features])
        for df in (train, test):
            df[self.features] = scaler.transform(df[self.features])
        self.train_ds = TurbofanDataset(train.iloc[train_rows], self.features)
        self.val_ds = TurbofanDataset(train.iloc[val_rows], self.features)
        self.test_ds = TurbofanDataset(test, self.features, last_only=True)

    def train_dataloader(self):
        return DataLoader(self.train_ds, batch_size=self.hparams.batch_size, shuffle=True,
                          num_workers=self.hparams.num_workers)

    def val_dataloader(self):
        return DataLoader(self.val_ds, batch_size=self.hparams.batch_size, num_workers=self.hparams.num_workers)

    def test_dataloader(self):
        return DataLoader(self.test_ds, batch_size=self.hparams.batch_size)


class CNNLSTM(nn.Module):
    def __init__(self, n_features, channels=64, hidden=96, layers=2, dropout=0.2):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(n_features, channels, kernel_size=5, padding=2), nn.BatchNorm1d(channels), nn.ReLU(),
            nn.Conv1d(channels, channels, kernel_size=3, padding=1), nn.BatchNorm1d(channels), nn.ReLU())
        self.lstm = nn.LSTM(channels, hidden, num_layers=layers, batch_first=True, dropout=dropout)
        self.head = nn.Sequential(nn.Linear(hidden, 64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 1))

    def forward(self, x):
        x = self.conv(x.transpose(1, 2)).transpose(1, 2)
        out, _ = self.lstm(x)
        return self.head(out[:, -1]).squeeze(-1)


class RULModule(L.LightningModule):
    def __init__(self, n_features, lr=1e-3, weight_decay=1e-4, max_rul=MAX_RUL):
        super().__init__()
        self.save_hyperparameters()
        self.model = CNNLSTM(n_features)
        self.train_rmse = MeanSquaredError(squared=False)
        self.val_rmse = MeanSquaredError(squared=False)
        self.val_mae = MeanAbsoluteError()
        self.test_rmse = MeanSquaredError(squared=False)
        self.test_errors = []
        self.n_seen = 0

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        y_hat = self(x)
        loss = F.smooth_l1_loss(y_hat, y / self.hparams.max_rul)
        self.train_rmse(y_hat.float() * self.hparams.max_rul, y)
        self.n_seen += len(y)
        self.log('train_loss', loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log('train_rmse', self.train_rmse, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        y_hat = self(x)
        loss = F.smooth_l1_loss(y_hat, y / self.hparams.max_rul)
        self.val_rmse(y_hat.float() * self.hparams.max_rul, y)
        self.val_mae(y_hat.float() * self.hparams.max_rul, y)
        self.log('val_loss', loss, prog_bar=True)
        self.log('val_rmse', self.val_rmse, prog_bar=True)
        self.log('val_mae', self.val_mae)

    def test_step(self, batch, batch_idx):
        x, y = batch
        y_hat = self(x).float() * self.hparams.max_rul
        self.test_rmse(y_hat, y)
        self.test_errors.append((y_hat - y).cpu())
        self.log('test_rmse', self.test_rmse)

    def on_test_epoch_end(self):
        # late predictions cost more than early ones
        d = torch.cat(self.test_errors)
        score = torch.where(d < 0, torch.exp(-d / 13) - 1, torch.exp(d / 10) - 1).sum()
        self.log('test_score', score)
        self.test_errors.clear()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr, weight_decay=self.hparams.weight_decay)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.hparams.lr * 3, total_steps=self.trainer.estimated_stepping_batches)
        return {'optimizer': optimizer, 'lr_scheduler': {'scheduler': scheduler, 'interval': 'step'}}


class HistoryCallback(Callback):
    def __init__(self):
        self.history = []

    def on_validation_epoch_end(self, trainer, pl_module):
        if trainer.sanity_checking:
            return
        metrics = {k: float(v) for k, v in trainer.callback_metrics.items()}
        self.history.append({'epoch': trainer.current_epoch, **metrics})
        print(f"epoch {trainer.current_epoch}: val_rmse {metrics['val_rmse']:.2f}, val_mae {metrics['val_mae']:.2f}")


dm = TurbofanDataModule()
model = RULModule(n_features=len(dm.features))
history = HistoryCallback()
checkpoint = ModelCheckpoint(dirpath='checkpoints', filename='rul-{epoch}-{val_rmse:.2f}', monitor='val_rmse',
                             mode='min', save_top_k=1, save_last=True)
trainer = L.Trainer(
    max_epochs=MAX_EPOCHS,
    accelerator='auto',
    devices=1,
    gradient_clip_val=1.0,
    log_every_n_steps=5,
    logger=CSVLogger('logs', name='turbofan'),
    callbacks=[checkpoint, EarlyStopping('val_rmse', patience=5), LearningRateMonitor('step'), history],
)
trainer.fit(model, dm)
trainer.test(model, dm, ckpt_path='best')
pd.DataFrame(history.history).to_csv('history.csv', index=False)
"""

GETITEM = CELL[CELL.index("        unit, end = self.index[idx]\n") : CELL.index("        return x, y\n")]

CHANGES = (
    Change(
        "windows sliced from tensors",
        "vectorize_items",
        edits={
            "        self.index = []\n": ""
            "        units = self.units.items()\n"
            "        self.x = {u: torch.tensor(g[features].values, dtype=torch.float32) for u, g in units}\n"
            "        self.y = {u: torch.tensor(g['RUL'].values, dtype=torch.float32) for u, g in units}\n"
            "        self.index = []\n",
            GETITEM: "        unit, end = self.index[idx]\n"
            "        x, y = self.x[unit][end - self.window:end], self.y[unit][end - 1]\n",
        },
    ),
    Change(
        "no workers",
        "num_workers",
        edits={"batch_size=BATCH_SIZE, num_workers=2)": "batch_size=BATCH_SIZE, num_workers=0)"},
    ),
    Change(
        "persistent workers",
        "persistent_workers",
        edits={
            "shuffle=True,\n                          num_workers=self.hparams.num_workers)": ""
            "shuffle=True,\n                          num_workers=self.hparams.num_workers, persistent_workers=True)",
            "DataLoader(self.val_ds, batch_size=self.hparams.batch_size, num_workers=self.hparams.num_workers)": ""
            "DataLoader(self.val_ds, batch_size=self.hparams.batch_size, num_workers=self.hparams.num_workers,\n"
            "                          persistent_workers=True)",
        },
    ),
    Change(
        "no progress bar, training logged per epoch",
        "fewer_logs",
        edits={
            "loss, on_step=True,": "loss, on_step=False,",
            "self.train_rmse, on_step=True,": "self.train_rmse, on_step=False,",
            "LearningRateMonitor('step')": "LearningRateMonitor('epoch')",
            "    log_every_n_steps=5,\n": "    log_every_n_steps=50,\n    enable_progress_bar=False,\n",
        },
    ),
    Change("batches of 256", "larger_batch", edits={"BATCH_SIZE = 64": "BATCH_SIZE = 256"}),
    Change("bf16-mixed", "precision", edits={"    devices=1,\n": "    devices=1,\n    precision='bf16-mixed',\n"}),
    Change(
        "fused AdamW",
        "fused_optimizer",
        edits={"weight_decay=self.hparams.weight_decay)": "weight_decay=self.hparams.weight_decay, fused=True)"},
    ),
)

LOOP = Loop(
    __doc__,
    prepare,
    CELL,
    CHANGES,
    samples="model.n_seen",
    loss="trainer.callback_metrics['test_rmse'].item()",
    seconds=8,
)
