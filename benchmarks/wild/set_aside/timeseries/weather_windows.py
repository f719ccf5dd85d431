"""A forecast of the weather: windows cut from a pandas frame in __getitem__, and early stopping checked every twenty steps."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Hourly measurements of a station with gaps."""
    hours = scaled(7200, scale, 32) + 1200
    index = pd.date_range("2019-01-01", periods=hours, freq="h")
    day = np.sin(2 * np.pi * np.arange(hours) / 24)
    columns = {
        name: offset + day * size + np.random.randn(hours)
        for name, offset, size in (
            ("temperature", 10.0, 5.0),
            ("pressure", 1010.0, 1.0),
            ("humidity", 70.0, -10.0),
            ("wind_speed", 4.0, 1.0),
            ("radiation", 150.0, 140.0),
        )
    }
    frame = pd.DataFrame(columns, index=index)
    frame[np.random.rand(hours, 5) < 0.01] = np.nan
    return {"df": frame}


CELL = """
import copy
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

LOOKBACK, HORIZON = 72, 24

class WeatherDataset(Dataset):
    def __init__(self, df, target='temperature'):
        self.df, self.target = df, target
        self.mean, self.std = df.mean(), df.std()

    def __len__(self):
        return len(self.df) - LOOKBACK - HORIZON

    def __getitem__(self, idx):
        window = self.df.iloc[idx:idx + LOOKBACK + HORIZON].copy()
        window = window.interpolate().bfill()
        window = (window - self.mean) / self.std
        window['hour_sin'] = np.sin(2 * np.pi * window.index.hour / 24)
        window['hour_cos'] = np.cos(2 * np.pi * window.index.hour / 24)
        x = window.iloc[:LOOKBACK].values
        y = window[self.target].iloc[LOOKBACK:].values
        return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)

class Forecaster(nn.Module):
    def __init__(self, n_features=7, hidden=48):
        super().__init__()
        self.conv = nn.Conv1d(n_features, hidden, 3, padding=1)
        self.gru = nn.GRU(hidden, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, 64), nn.ReLU(), nn.Linear(64, HORIZON))

    def forward(self, x):
        x = torch.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        out, _ = self.gru(x)
        return self.head(out[:, -1])

dataset = WeatherDataset(df)
n_train = (len(dataset) - 1100) // 2
train_loader = DataLoader(Subset(dataset, range(0, 2 * n_train, 2)), batch_size=32, shuffle=True)
val_loader = DataLoader(Subset(dataset, range(len(dataset) - 960, len(dataset), 8)), batch_size=120)

model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.HuberLoss()

best, best_state, bad, patience, check_every = float('inf'), None, 0, 50, 20
step = windows = 0
for epoch in range(1):
    for x, y in train_loader:
        model.train()
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        windows += len(x)
        if step % check_every == 0:
            model.eval()
            with torch.no_grad():
                val_loss = np.mean([criterion(model(vx), vy).item() for vx, vy in val_loader])
            print(f'step {step} train {loss.item():.4f} val {val_loss:.4f}')
            if val_loss < best:
                best, best_state, bad = val_loss, copy.deepcopy(model.state_dict()), 0
            else:
                bad += 1
            if bad > patience:
                break
if best_state is not None:
    model.load_state_dict(best_state)
"""

CHANGES = (
    Change(
        "fill and scale the frame once, slice an array",
        "vectorize_items",
        edits={
            "        self.df, self.target = df, target\n        self.mean, self.std = df.mean(), df.std()\n": """        self.df = df
        table = (df.interpolate().bfill() - df.mean()) / df.std()
        hour = 2 * np.pi * table.index.hour / 24
        self.column = list(df.columns).index(target)
        self.table = torch.tensor(np.column_stack([table.values, np.sin(hour), np.cos(hour)]), dtype=torch.float32)
""",
            CELL[
                CELL.index("        window = self.df.iloc") : CELL.index("class Forecaster")
            ]: """        x = self.table[idx:idx + LOOKBACK]
        return x, self.table[idx + LOOKBACK:idx + LOOKBACK + HORIZON, self.column]

""",
        },
    ),
    Change(
        "validate every hundred steps",
        "eval_less_often",
        edits={
            "best, best_state, bad, patience, check_every = float('inf'), None, 0, 50, 20": "best, best_state, bad, patience, check_every = float('inf'), None, 0, 50, 100"
        },
    ),
    Change(
        "keep the validation batches",
        "cache_items",
        edits={"\nmodel = Forecaster()": "val_loader = list(val_loader)\n\nmodel = Forecaster()"},
    ),
    Change(
        "two workers",
        "num_workers",
        edits={"batch_size=32, shuffle=True)": "batch_size=32, shuffle=True, num_workers=2)"},
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="windows", seconds=6)
