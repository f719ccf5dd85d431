"""An N-BEATS of generic blocks whose dataset slices a pandas series per item, as in forecasting notebooks."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Two years of hourly demand in a CSV file."""
    hours = scaled(16384, scale, 512) + 191
    t = np.arange(hours)
    demand = 100 + 20 * np.sin(t * 2 * np.pi / 24) + 8 * np.sin(t * 2 * np.pi / 168) + np.random.normal(size=hours) * 3
    index = pd.date_range("2022-01-01", periods=hours, freq="h", name="timestamp")
    pd.DataFrame({"demand": demand}, index=index).to_csv("demand.csv")
    return {}


CELL = """
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, DataLoader

BACKCAST, FORECAST, BATCH_SIZE = 168, 24, 128

class DemandDataset(Dataset):
    def __init__(self, series, backcast, forecast):
        self.series = series
        self.backcast, self.forecast = backcast, forecast

    def __len__(self):
        return len(self.series) - self.backcast - self.forecast + 1

    def __getitem__(self, idx):
        window = self.series.iloc[idx:idx + self.backcast + self.forecast]
        x = window.iloc[:self.backcast]
        y = window.iloc[self.backcast:]
        scale = x.max()
        x = torch.tensor((x / scale).values, dtype=torch.float32)
        y = torch.tensor((y / scale).values, dtype=torch.float32)
        return x, y

class Block(nn.Module):
    def __init__(self, units, thetas_dim):
        super().__init__()
        self.fc1 = nn.Linear(BACKCAST, units)
        self.fc2 = nn.Linear(units, units)
        self.fc3 = nn.Linear(units, units)
        self.fc4 = nn.Linear(units, units)
        self.theta_b = nn.Linear(units, thetas_dim, bias=False)
        self.theta_f = nn.Linear(units, thetas_dim, bias=False)
        self.backcast_fc = nn.Linear(thetas_dim, BACKCAST)
        self.forecast_fc = nn.Linear(thetas_dim, FORECAST)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        x = F.relu(self.fc3(x))
        x = F.relu(self.fc4(x))
        return self.backcast_fc(self.theta_b(x)), self.forecast_fc(self.theta_f(x))

class NBeats(nn.Module):
    def __init__(self, n_stacks=2, n_blocks=3, units=128, thetas_dim=8):
        super().__init__()
        self.stacks = nn.ModuleList(nn.ModuleList(Block(units, thetas_dim) for _ in range(n_blocks)) for _ in range(n_stacks))

    def forward(self, backcast):
        forecast = torch.zeros(backcast.size(0), FORECAST)
        for stack in self.stacks:
            for block in stack:
                b, f = block(backcast)
                backcast = backcast - b
                forecast = forecast + f
        return backcast, forecast

df = pd.read_csv('demand.csv', parse_dates=['timestamp'], index_col='timestamp')
train_loader = DataLoader(DemandDataset(df['demand'], BACKCAST, FORECAST), batch_size=BATCH_SIZE, shuffle=True)
model = NBeats()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

n_windows = 0
for epoch in range(2):
    train_loss = []
    for step, (x, y) in enumerate(train_loader):
        optimizer.zero_grad()
        _, forecast = model(x)
        loss = F.mse_loss(forecast, y)
        loss.backward()
        optimizer.step()
        train_loss.append(loss.item())
        n_windows += len(x)
        if step % 30 == 0:
            print(f'epoch = {epoch}, step = {step}, loss = {loss.item():.6f}')
    print(f'epoch {epoch}: {np.mean(train_loss):.6f}')
"""

_ITEM = CELL[CELL.index("        window = self.series") : CELL.index("\nclass Block")]

CHANGES = (
    Change(
        "slice an array",
        "vectorize_items",
        edits={
            "        self.series = series\n": "        self.series = series.to_numpy(dtype=np.float32)\n",
            _ITEM: """        window = self.series[idx:idx + self.backcast + self.forecast]
        window = torch.from_numpy(window / window[:self.backcast].max())
        return window[:self.backcast], window[self.backcast:]
""",
        },
    ),
    Change(
        "unfold and index whole batches",
        "batch_whole",
        edits={
            "        self.series = series\n": "        self.series = series\n"
            "        values = torch.tensor(series.values, dtype=torch.float32)\n"
            "        self.windows = values.unfold(0, backcast + forecast, 1)\n",
            _ITEM: """        window = self.windows[idx]
        x, y = window[:, :self.backcast], window[:, self.backcast:]
        scale = x.max(1, keepdim=True).values
        return x / scale, y / scale
""",
            "train_loader = DataLoader(DemandDataset(df['demand'], BACKCAST, FORECAST), batch_size=BATCH_SIZE, "
            "shuffle=True)": "train_set = DemandDataset(df['demand'], BACKCAST, FORECAST)\n"
            "batches = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(train_set), BATCH_SIZE, False)\n"
            "train_loader = DataLoader(train_set, sampler=batches, batch_size=None)",
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("batches of 512", "larger_batch", edits={"168, 24, 128": "168, 24, 512"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        _, forecast = model(x)\n": "        with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "            _, forecast = model(x)\n"
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_windows", seconds=6)
