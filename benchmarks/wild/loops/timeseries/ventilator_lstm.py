"""Airway pressure of a ventilator, breath by breath: pandas lags, a BiLSTM, five folds and early stopping, as in Kaggle notebooks."""

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

FOLDER = Path("input/ventilator-pressure-prediction")


def breaths(rng: np.random.Generator, count: int, first: int) -> pd.DataFrame:
    """Breaths of 80 irregular time steps through a lung of one resistance and one compliance."""
    resistance = rng.choice([5, 20, 50], count)[:, None]
    compliance = rng.choice([10, 20, 50], count)[:, None]
    steps = np.cumsum(rng.uniform(0.031, 0.036, (count, 80)), axis=1)
    steps -= steps[:, :1]
    rise, height = rng.uniform(0.05, 0.5, (count, 1)), rng.gamma(3, 6, (count, 1))
    u_in = (height * np.exp(-((steps - rise) ** 2) / 0.1) + rng.gamma(1, 2, (count, 1))).clip(0, 100)
    u_out = (steps > 1).astype(int)
    pressure, volume = np.zeros((count, 80)), np.zeros(count)
    for step in range(80):
        flow = np.where(u_out[:, step], -volume * 1.4, u_in[:, step] * 0.35)
        volume = volume + flow * 0.033
        pressure[:, step] = 6 + 55 * volume / compliance[:, 0] + np.maximum(flow, 0) * resistance[:, 0] / 20
    pressure += rng.normal(0, 0.07, pressure.shape)
    frame = {
        "breath_id": np.arange(first, first + count)[:, None],
        "R": resistance,
        "C": compliance,
        "time_step": steps,
        "u_in": u_in,
        "u_out": u_out,
        "pressure": pressure,
    }
    table = pd.DataFrame({name: np.broadcast_to(values, (count, 80)).ravel() for name, values in frame.items()})
    table.insert(0, "id", np.arange(len(table)) + first * 80 + 1)
    return table


def prepare(scale: float) -> Namespace:
    """The files train.csv and test.csv of the competition."""
    rng = np.random.default_rng(0)
    FOLDER.mkdir(parents=True)
    count = scaled(240, scale, 40)
    breaths(rng, count, 1).to_csv(FOLDER / "train.csv", index=False)
    breaths(rng, count // 2, count + 1).drop(columns="pressure").to_csv(FOLDER / "test.csv", index=False)
    return {}


CELL = """
# %% imports
import gc
import os
import random
import time

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.model_selection import KFold
from sklearn.preprocessing import RobustScaler
from torch.utils.data import DataLoader, Dataset

# %% config
INPUT_DIR = './input/ventilator-pressure-prediction'
OUTPUT_DIR = './'

class CFG:
    seed = 42
    n_fold = 5
    trn_fold = [0, 1, 2, 3, 4]
    num_workers = 0
    batch_size = 32
    epochs = 3
    es_patience = 2
    lr = 5e-3
    min_lr = 1e-5
    weight_decay = 1e-6
    max_grad_norm = 1000
    hidden_size = 64
    print_freq = 10

def seed_torch(seed=42):
    random.seed(seed)
    os.environ['PYTHONHASHSEED'] = str(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)

seed_torch(CFG.seed)
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

# %% data
train = pd.read_csv(f'{INPUT_DIR}/train.csv')
test = pd.read_csv(f'{INPUT_DIR}/test.csv')
sub = test[['id']].copy()

# %% feature engineering
def add_feature(df):
    g = df.groupby('breath_id')
    df['delta_time'] = g['time_step'].diff().fillna(0)
    df['area'] = df['delta_time'] * df['u_in']
    df['area'] = df.groupby('breath_id')['area'].cumsum()
    df['u_in_cumsum'] = g['u_in'].cumsum()
    for lag in range(1, 5):
        df[f'u_in_lag{lag}'] = g['u_in'].shift(lag).fillna(0)
        df[f'u_in_lag_back{lag}'] = g['u_in'].shift(-lag).fillna(0)
        df[f'u_in_diff{lag}'] = df['u_in'] - df[f'u_in_lag{lag}']
    df['u_in_max'] = g['u_in'].transform('max')
    df['u_in_mean'] = g['u_in'].transform('mean')
    df['u_in_diffmax'] = df['u_in_max'] - df['u_in']
    df['u_in_rolling_mean'] = g['u_in'].rolling(window=10, min_periods=1).mean().reset_index(level=0, drop=True)
    df['u_in_rolling_std'] = g['u_in'].rolling(window=10, min_periods=1).std().fillna(0).reset_index(level=0, drop=True)
    df['u_in_ewm'] = g['u_in'].ewm(halflife=9).mean().reset_index(level=0, drop=True)
    df['R'] = df['R'].astype(str)
    df['C'] = df['C'].astype(str)
    df['R__C'] = df['R'] + '__' + df['C']
    return pd.get_dummies(df, columns=['R', 'C', 'R__C'], dtype=float)

train = add_feature(train)
test = add_feature(test)
for c in set(train.columns) - set(test.columns) - {'pressure'}:
    test[c] = 0.0
features = [c for c in train.columns if c not in ['id', 'breath_id', 'pressure']]
print(len(features), 'features')

scaler = RobustScaler()
X_all = scaler.fit_transform(train[features]).astype(np.float32).reshape(-1, 80, len(features))
X_test = scaler.transform(test[features]).astype(np.float32).reshape(-1, 80, len(features))
y_all = train['pressure'].to_numpy(np.float32).reshape(-1, 80)
w_all = (1 - train['u_out'].to_numpy(np.float32)).reshape(-1, 80)
del train, test
gc.collect()

# %% dataset
class TrainDataset(Dataset):
    def __init__(self, X, y, w):
        self.X, self.y, self.w = X, y, w

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        return torch.tensor(self.X[i]), torch.tensor(self.y[i]), torch.tensor(self.w[i])

class TestDataset(Dataset):
    def __init__(self, X):
        self.X = X

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        return torch.tensor(self.X[i])

# %% model
class VentModel(nn.Module):
    def __init__(self, n_feat, hidden):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(n_feat, hidden), nn.LayerNorm(hidden), nn.ReLU())
        self.lstm = nn.LSTM(hidden, hidden, num_layers=2, dropout=0.1, bidirectional=True, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden * 2, hidden), nn.SiLU(), nn.Linear(hidden, 1))
        for name, p in self.lstm.named_parameters():
            if 'weight_ih' in name:
                nn.init.xavier_uniform_(p)
            elif 'weight_hh' in name:
                nn.init.orthogonal_(p)
            else:
                nn.init.zeros_(p)

    def forward(self, x):
        x = self.mlp(x)
        x, _ = self.lstm(x)
        return self.head(x).squeeze(-1)

def masked_mae(pred, y, w):
    return ((pred - y).abs() * w).sum() / w.sum()

class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0, 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

# %% helpers
def train_fn(fold, loader, model, optimizer, epoch, scheduler):
    global n_seen
    model.train()
    losses = AverageMeter()
    for step, (x, y, w) in enumerate(loader):
        x, y, w = x.to(device), y.to(device), w.to(device)
        optimizer.zero_grad()
        pred = model(x)
        loss = masked_mae(pred, y, w)
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CFG.max_grad_norm)
        optimizer.step()
        scheduler.step()
        losses.update(loss.item(), len(x))
        n_seen += len(x)
        if step % CFG.print_freq == 0 or step == len(loader) - 1:
            print(f'Epoch: [{epoch + 1}][{step}/{len(loader)}] Loss: {losses.avg:.4f} Grad: {grad_norm:.4f} '
                  f'LR: {scheduler.get_last_lr()[0]:.6f}')
    return losses.avg

def valid_fn(loader, model):
    model.eval()
    preds = []
    for x, y, w in loader:
        with torch.no_grad():
            preds.append(model(x.to(device)).cpu().numpy())
    return np.concatenate(preds)

def inference_fn(loader, model):
    model.eval()
    preds = []
    for x in loader:
        with torch.no_grad():
            preds.append(model(x.to(device)).cpu().numpy())
    return np.concatenate(preds)

def get_score(y, p, w):
    return np.abs(y[w == 1] - p[w == 1]).mean()

# %% train folds
n_seen = 0
oof = np.zeros_like(y_all)
test_preds = []
test_loader = DataLoader(TestDataset(X_test), batch_size=CFG.batch_size, shuffle=False, num_workers=CFG.num_workers)
kf = KFold(n_splits=CFG.n_fold, shuffle=True, random_state=CFG.seed)
for fold, (trn_idx, val_idx) in enumerate(kf.split(X_all)):
    if fold not in CFG.trn_fold:
        continue
    print(f'========== fold: {fold} training ==========')
    train_dataset = TrainDataset(X_all[trn_idx], y_all[trn_idx], w_all[trn_idx])
    valid_dataset = TrainDataset(X_all[val_idx], y_all[val_idx], w_all[val_idx])
    train_loader = DataLoader(train_dataset, batch_size=CFG.batch_size, shuffle=True, num_workers=CFG.num_workers)
    valid_loader = DataLoader(valid_dataset, batch_size=CFG.batch_size, shuffle=False, num_workers=CFG.num_workers)

    model = VentModel(len(features), CFG.hidden_size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=CFG.lr, weight_decay=CFG.weight_decay)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=CFG.epochs * len(train_loader),
                                                           eta_min=CFG.min_lr)
    best_score, wait = np.inf, 0
    for epoch in range(CFG.epochs):
        start_time = time.time()
        avg_loss = train_fn(fold, train_loader, model, optimizer, epoch, scheduler)
        preds = valid_fn(valid_loader, model)
        score = get_score(y_all[val_idx], preds, w_all[val_idx])
        print(f'Epoch {epoch + 1} - avg_train_loss: {avg_loss:.4f}  MAE: {score:.4f}  '
              f'time: {time.time() - start_time:.0f}s')
        if score < best_score:
            best_score, wait = score, 0
            torch.save({'model': model.state_dict(), 'preds': preds}, OUTPUT_DIR + f'fold{fold}_best.pth')
            print(f'Epoch {epoch + 1} - Save Best Score: {best_score:.4f} Model')
        else:
            wait += 1
            if wait >= CFG.es_patience:
                print('Early stopping')
                break

    check_point = torch.load(OUTPUT_DIR + f'fold{fold}_best.pth', weights_only=False)
    oof[val_idx] = check_point['preds']
    model.load_state_dict(check_point['model'])
    test_preds.append(inference_fn(test_loader, model))
    print(f'========== fold: {fold} result: {get_score(y_all[val_idx], oof[val_idx], w_all[val_idx]):.4f}')
    del model, optimizer, train_loader, valid_loader
    gc.collect()

# %% submission
print(f'========== CV: {get_score(y_all, oof, w_all):.4f} ==========')
sub['pressure'] = np.median(np.stack(test_preds), axis=0).reshape(-1)
sub.to_csv(OUTPUT_DIR + 'submission.csv', index=False)
"""

LOADER_LOOP = "    for step, (x, y, w) in enumerate(loader):\n"
CHANGES = (
    Change(
        "whole batches of tensors",
        "batch_whole",
        edits={
            LOADER_LOOP: "    data = [torch.from_numpy(a) for a in (loader.dataset.X, loader.dataset.y, loader.dataset.w)]\n"
            "    for step, index in enumerate(torch.randperm(len(data[0])).split(CFG.batch_size)):\n"
            "        x, y, w = (tensor[index] for tensor in data)\n",
        },
    ),
    Change(
        "validation and test in batches of 256",
        "other",
        edits={
            "DataLoader(valid_dataset, batch_size=CFG.batch_size": "DataLoader(valid_dataset, batch_size=256",
            "DataLoader(TestDataset(X_test), batch_size=CFG.batch_size": "DataLoader(TestDataset(X_test), batch_size=256",
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        pred = model(x)\n        loss = masked_mae(pred, y, w)\n": ""
            "        with torch.autocast(device.type, dtype=torch.bfloat16):\n"
            "            pred = model(x)\n"
            "            loss = masked_mae(pred, y, w)\n"
        },
    ),
    Change("batches of 128", "larger_batch", edits={"batch_size = 32": "batch_size = 128"}),
    Change("two workers", "num_workers", edits={"num_workers = 0": "num_workers = 2"}),
    Change(
        "fused AdamW",
        "fused_optimizer",
        edits={"weight_decay=CFG.weight_decay)": "weight_decay=CFG.weight_decay, fused=True)"},
    ),
    Change(
        "one thread", "threads", edits={"seed_torch(CFG.seed)\n": "seed_torch(CFG.seed)\ntorch.set_num_threads(1)\n"}
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_seen", loss="avg_loss", seconds=8)
