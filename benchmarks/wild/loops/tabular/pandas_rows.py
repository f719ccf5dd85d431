"""A multilayer perceptron on a DataFrame whose rows are indexed with iloc in __getitem__, as in Kaggle tabular kernels."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A CSV with forty numeric columns and a target."""
    rng = np.random.default_rng(0)
    count = scaled(12_800, scale, 128)
    frame = pd.DataFrame(rng.normal(size=(count, 40)).round(4), columns=[f"feat_{k}" for k in range(40)])
    frame["target"] = (frame["feat_0"] + frame["feat_3"] + rng.normal(size=count) > 0).astype(int)
    frame.to_csv("train.csv", index_label="id")
    return {}


CELL = """
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader

train = pd.read_csv('train.csv')
features = [c for c in train.columns if c.startswith('feat_')]
train[features] = (train[features] - train[features].mean()) / train[features].std()

class TabularDataset(Dataset):
    def __init__(self, df, features, target):
        self.df = df.reset_index(drop=True)
        self.features = features
        self.target = target

    def __len__(self):
        return len(self.df)

    def __getitem__(self, idx):
        row = self.df.iloc[idx]
        x = row[self.features].values.astype(np.float32)
        y = row[self.target].astype(np.float32)
        return torch.tensor(x), torch.tensor(y)

class Model(nn.Module):
    def __init__(self, num_features, hidden_size=256):
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm1d(num_features), nn.Dropout(0.2), nn.Linear(num_features, hidden_size), nn.PReLU(),
            nn.BatchNorm1d(hidden_size), nn.Dropout(0.4), nn.Linear(hidden_size, hidden_size), nn.PReLU(),
            nn.BatchNorm1d(hidden_size), nn.Dropout(0.4), nn.Linear(hidden_size, 1))

    def forward(self, x):
        return self.layers(x).squeeze(1)

BATCH_SIZE = 128
train_loader = DataLoader(TabularDataset(train, features, 'target'), batch_size=BATCH_SIZE, shuffle=True)
model = Model(len(features))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)
loss_fn = nn.BCEWithLogitsLoss()

n_seen = 0
for epoch in range(1):
    final_loss = 0
    model.train()
    for data in train_loader:
        optimizer.zero_grad()
        inputs, targets = data
        outputs = model(inputs)
        loss = loss_fn(outputs, targets)
        loss.backward()
        optimizer.step()
        final_loss += loss.item()
        n_seen += len(targets)
    print(f'EPOCH: {epoch}, train_loss: {final_loss / len(train_loader)}')
"""

CHANGES = (
    Change(
        "arrays in __init__",
        "vectorize_items",
        edits={
            "        self.df = df.reset_index(drop=True)\n": "        self.x = df[features].values.astype(np.float32)\n"
            "        self.y = df[target].values.astype(np.float32)\n",
            "        return len(self.df)\n": "        return len(self.x)\n",
            """        row = self.df.iloc[idx]
        x = row[self.features].values.astype(np.float32)
        y = row[self.target].astype(np.float32)
        return torch.tensor(x), torch.tensor(y)
""": "        return torch.from_numpy(self.x[idx]), torch.tensor(self.y[idx])\n",
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("batches of 512", "larger_batch", edits={"BATCH_SIZE = 128": "BATCH_SIZE = 512"}),
    Change("fused Adam", "fused_optimizer", edits={"weight_decay=1e-5)": "weight_decay=1e-5, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_seen", seconds=5)
