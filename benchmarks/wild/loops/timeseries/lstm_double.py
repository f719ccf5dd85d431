"""Load forecasting with an LSTM that was made double because the NumPy arrays are, as after a dtype error."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Hourly loads with daily and weekly seasons, and the weather."""
    rng = np.random.default_rng(0)
    count = scaled(3072, scale, 128) + 96
    hours = np.arange(count)
    load = 50 + 10 * np.sin(hours / 24 * 2 * np.pi) + 5 * np.sin(hours / 168 * 2 * np.pi) + rng.normal(size=count)
    frame = pd.DataFrame({"load": load, "temp": rng.normal(15, 5, count), "wind": rng.gamma(2, 2, count)})
    frame.index = pd.date_range("2019-01-01", periods=count, freq="h")
    frame.to_csv("energy.csv", index_label="datetime")
    return {}


CELL = """
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import TensorDataset, DataLoader

df = pd.read_csv('energy.csv', index_col='datetime', parse_dates=True)
df['hour_sin'] = np.sin(2 * np.pi * df.index.hour / 24)
df['hour_cos'] = np.cos(2 * np.pi * df.index.hour / 24)
values = ((df - df.min()) / (df.max() - df.min())).values

def create_sequences(data, seq_length):
    xs, ys = [], []
    for i in range(len(data) - seq_length):
        xs.append(data[i:(i + seq_length)])
        ys.append(data[i + seq_length, :1])
    return np.array(xs), np.array(ys)

X, y = create_sequences(values, 96)
train_data = TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
train_loader = DataLoader(train_data, batch_size=64, shuffle=True)

class LoadForecaster(nn.Module):
    def __init__(self, n_features, n_hidden=96, n_layers=2):
        super().__init__()
        self.lstm = nn.LSTM(n_features, n_hidden, n_layers, batch_first=True, dropout=0.2)
        self.linear = nn.Linear(n_hidden, 1)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.linear(out[:, -1, :])

model = LoadForecaster(values.shape[1])
model = model.double()  # RuntimeError: mat1 and mat2 must have the same dtype
loss_fn = nn.MSELoss()
optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
train_hist = []
n_windows = 0

for t in range(1):
    epoch_loss = 0
    for X_batch, y_batch in train_loader:
        y_pred = model(X_batch)
        loss = loss_fn(y_pred, y_batch)
        epoch_loss += loss.item()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        n_windows += len(X_batch)
    train_hist.append(epoch_loss / len(train_loader))
    print(f'Epoch {t} train loss: {train_hist[-1]:.5f}')
"""

CHANGES = (
    Change(
        "float32",
        "precision",
        edits={
            "torch.from_numpy(X), torch.from_numpy(y))": "torch.from_numpy(X).float(), torch.from_numpy(y).float())",
            "model = model.double()  # RuntimeError: mat1 and mat2 must have the same dtype\n": "",
        },
    ),
    Change(
        "windows as views",
        "remove_python",
        edits={
            """    xs, ys = [], []
    for i in range(len(data) - seq_length):
        xs.append(data[i:(i + seq_length)])
        ys.append(data[i + seq_length, :1])
    return np.array(xs), np.array(ys)
""": """    xs = np.lib.stride_tricks.sliding_window_view(data, seq_length, axis=0)[:-1].transpose(0, 2, 1)
    return xs.copy(), data[seq_length:, :1]
"""
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
    Change("batches of 128", "larger_batch", edits={"batch_size=64": "batch_size=128"}),
    Change("one thread", "threads", edits={"train_hist = []": "train_hist = []\ntorch.set_num_threads(1)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_windows", seconds=8)
