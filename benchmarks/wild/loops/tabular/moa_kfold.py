"""Mechanisms of action, as in the Kaggle kernels: five folds, a weight-normalized MLP, OneCycleLR, a smoothed loss."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Gene expression and cell viability of drug samples, and sparse labels, as data frames."""
    rng = np.random.default_rng(0)
    count, genes, cells, labels = scaled(1920, scale, 640), 400, 60, 100
    factors = rng.standard_normal((count, 24)).astype(np.float32)
    features = factors @ rng.standard_normal((24, genes + cells)).astype(np.float32) / 5
    features += 0.5 * rng.standard_normal(features.shape).astype(np.float32)
    scores = factors @ rng.standard_normal((24, labels)).astype(np.float32)
    targets = (scores > 11).astype(np.int64)
    columns = [f"g-{i}" for i in range(genes)] + [f"c-{i}" for i in range(cells)]
    train = pd.DataFrame(features, columns=columns)
    train.insert(0, "cp_time", rng.choice([24, 48, 72], count))
    train.insert(1, "cp_dose", rng.choice(["D1", "D2"], count))
    train["kfold"] = rng.permutation(count) % 5
    return {"train": train, "train_targets": pd.DataFrame(targets, columns=[f"target_{i}" for i in range(labels)])}


CELL = """
import random, os
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.nn.modules.loss import _WeightedLoss
from torch.nn.utils.parametrizations import weight_norm

def seed_everything(seed=42):
    random.seed(seed)
    os.environ['PYTHONHASHSEED'] = str(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)

DEVICE = ('cuda' if torch.cuda.is_available() else 'cpu')
EPOCHS = 3
BATCH_SIZE = 128
LEARNING_RATE = 5e-3
WEIGHT_DECAY = 1e-5
NFOLDS = 5
HIDDEN_SIZE = 1024

folds = pd.get_dummies(train, columns=['cp_time', 'cp_dose'])
target_cols = train_targets.columns.tolist()
folds = pd.concat([folds, train_targets], axis=1)
feature_cols = [c for c in folds.columns if c not in target_cols and c != 'kfold']

class MoADataset:
    def __init__(self, features, targets):
        self.features = features
        self.targets = targets

    def __len__(self):
        return (self.features.shape[0])

    def __getitem__(self, idx):
        dct = {
            'x': torch.tensor(self.features[idx, :], dtype=torch.float),
            'y': torch.tensor(self.targets[idx, :], dtype=torch.float)
        }
        return dct

class SmoothBCEwLogits(_WeightedLoss):
    def __init__(self, weight=None, reduction='mean', smoothing=0.0):
        super().__init__(weight=weight, reduction=reduction)
        self.smoothing = smoothing

    @staticmethod
    def _smooth(targets, n_labels, smoothing=0.0):
        with torch.no_grad():
            targets = targets * (1.0 - smoothing) + 0.5 * smoothing
        return targets

    def forward(self, inputs, targets):
        targets = SmoothBCEwLogits._smooth(targets, inputs.size(-1), self.smoothing)
        return F.binary_cross_entropy_with_logits(inputs, targets, self.weight, reduction=self.reduction)

class Model(nn.Module):
    def __init__(self, num_features, num_targets, hidden_size):
        super(Model, self).__init__()
        self.batch_norm1 = nn.BatchNorm1d(num_features)
        self.dense1 = weight_norm(nn.Linear(num_features, hidden_size))
        self.batch_norm2 = nn.BatchNorm1d(hidden_size)
        self.dropout2 = nn.Dropout(0.25)
        self.dense2 = weight_norm(nn.Linear(hidden_size, hidden_size))
        self.batch_norm3 = nn.BatchNorm1d(hidden_size)
        self.dropout3 = nn.Dropout(0.25)
        self.dense3 = weight_norm(nn.Linear(hidden_size, num_targets))

    def forward(self, x):
        x = self.batch_norm1(x)
        x = F.leaky_relu(self.dense1(x))
        x = self.batch_norm2(x)
        x = self.dropout2(x)
        x = F.leaky_relu(self.dense2(x))
        x = self.batch_norm3(x)
        x = self.dropout3(x)
        return self.dense3(x)

n_trained = 0

def train_fn(model, optimizer, scheduler, loss_fn, dataloader, device):
    global n_trained
    model.train()
    final_loss = 0
    for data in dataloader:
        optimizer.zero_grad()
        inputs, targets = data['x'].to(device), data['y'].to(device)
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
        loss.backward()
        optimizer.step()
        scheduler.step()
        final_loss += loss.item()
        n_trained += len(inputs)
    final_loss /= len(dataloader)
    return final_loss

def valid_fn(model, loss_fn, dataloader, device):
    model.eval()
    final_loss = 0
    valid_preds = []
    for data in dataloader:
        inputs, targets = data['x'].to(device), data['y'].to(device)
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
        final_loss += loss.item()
        valid_preds.append(outputs.sigmoid().detach().cpu().numpy())
    final_loss /= len(dataloader)
    valid_preds = np.concatenate(valid_preds)
    return final_loss, valid_preds

def run_training(fold, seed):
    seed_everything(seed)
    train_df = folds[folds['kfold'] != fold].reset_index(drop=True)
    valid_df = folds[folds['kfold'] == fold]
    val_idx = valid_df.index
    x_train, y_train = train_df[feature_cols].values, train_df[target_cols].values
    x_valid, y_valid = valid_df[feature_cols].values, valid_df[target_cols].values

    train_dataset = MoADataset(x_train.astype(np.float32), y_train)
    valid_dataset = MoADataset(x_valid.astype(np.float32), y_valid)
    trainloader = torch.utils.data.DataLoader(train_dataset, batch_size=BATCH_SIZE, shuffle=True)
    validloader = torch.utils.data.DataLoader(valid_dataset, batch_size=128, shuffle=False)

    model = Model(num_features=len(feature_cols), num_targets=len(target_cols), hidden_size=HIDDEN_SIZE)
    model.to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    scheduler = optim.lr_scheduler.OneCycleLR(optimizer=optimizer, pct_start=0.1, div_factor=1e3,
                                              max_lr=1e-2, epochs=EPOCHS, steps_per_epoch=len(trainloader))
    loss_fn = nn.BCEWithLogitsLoss()
    loss_tr = SmoothBCEwLogits(smoothing=0.001)

    oof = np.zeros((len(folds), len(target_cols)))
    best_loss = np.inf
    for epoch in range(EPOCHS):
        train_loss = train_fn(model, optimizer, scheduler, loss_tr, trainloader, DEVICE)
        valid_loss, valid_preds = valid_fn(model, loss_fn, validloader, DEVICE)
        print(f"FOLD: {fold}, EPOCH: {epoch}, train_loss: {train_loss}, valid_loss: {valid_loss}")
        if valid_loss < best_loss:
            best_loss = valid_loss
            oof[val_idx] = valid_preds
            torch.save(model.state_dict(), f"FOLD{fold}_.pth")
    return oof, best_loss

oof = np.zeros((len(folds), len(target_cols)))
cv_scores = []
for fold in range(NFOLDS):
    oof_, fold_score = run_training(fold, seed=0)
    oof += oof_
    cv_scores.append(fold_score)
print('CV log loss: ', np.mean(cv_scores))
"""

TRAIN_FORWARD = """        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
        loss.backward()
"""

CHANGES = (
    Change(
        "fused Adam", "fused_optimizer", edits={"weight_decay=WEIGHT_DECAY)": "weight_decay=WEIGHT_DECAY, fused=True)"}
    ),
    Change("batches of 512", "larger_batch", edits={"BATCH_SIZE = 128": "BATCH_SIZE = 512"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            TRAIN_FORWARD: "        with torch.autocast(device, dtype=torch.bfloat16):\n"
            "            outputs = model(inputs)\n"
            "            loss = loss_fn(outputs, targets)\n"
            "        loss.backward()\n"
        },
    ),
    Change(
        "batches by tensor indices",
        "batch_whole",
        edits={
            "BATCH_SIZE, shuffle=True)": (
                "None,\n        sampler=torch.utils.data.BatchSampler(\n"
                "            torch.utils.data.RandomSampler(train_dataset), BATCH_SIZE, drop_last=False))"
            ),
        },
    ),
    Change(
        "two workers", "num_workers", edits={"BATCH_SIZE, shuffle=True)": "BATCH_SIZE, shuffle=True, num_workers=2)"}
    ),
    Change(
        "validation without gradients",
        "no_grad",
        edits={"def valid_fn(": "@torch.no_grad()\ndef valid_fn("},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_trained", loss="float(np.mean(cv_scores))", seconds=6)
