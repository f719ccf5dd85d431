"""An LSTM that forecasts from sliding windows of a data frame, as in tutorials on electricity and weather series."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """An hourly CSV with seven columns, shaped like ETTh1."""
    hours = scaled(4800, scale, 64) + 120
    t = np.arange(hours)
    columns = {name: np.sin(t / (5 + k)) + np.random.normal(size=hours) * 0.2 for k, name in enumerate("ABCDEFG")}
    frame = pd.DataFrame(columns, index=pd.date_range("2016-07-01", periods=hours, freq="h"))
    frame.to_csv("ETTh1.csv", index_label="date")
    return {}


CELL = """
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader

seq_len, pred_len = 96, 24

class ETTDataset(Dataset):
    def __init__(self, path):
        df = pd.read_csv(path)
        data = df[df.columns[1:]].values.astype(np.float32)
        self.data_x = (data - data.mean(0)) / data.std(0)

    def __getitem__(self, index):
        s_end = index + seq_len
        seq_x = self.data_x[index:s_end]
        seq_y = self.data_x[s_end:s_end + pred_len]
        return seq_x, seq_y

    def __len__(self):
        return len(self.data_x) - seq_len - pred_len

class Forecaster(nn.Module):
    def __init__(self, n_features=7, hidden=64):
        super().__init__()
        self.lstm = nn.LSTM(n_features, hidden, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(hidden, pred_len * n_features)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.head(out[:, -1]).view(-1, pred_len, x.shape[-1])

train_loader = DataLoader(ETTDataset('ETTh1.csv'), batch_size=64, shuffle=True, num_workers=0, drop_last=True)
model = Forecaster()
criterion = nn.MSELoss()
model_optim = torch.optim.Adam(model.parameters(), lr=1e-4)

windows = 0
for epoch in range(1):
    iter_count, train_loss = 0, []
    model.train()
    for i, (batch_x, batch_y) in enumerate(train_loader):
        iter_count += 1
        model_optim.zero_grad()
        outputs = model(batch_x.float())
        loss = criterion(outputs, batch_y.float())
        train_loss.append(loss.item())
        windows += len(batch_x)
        if (i + 1) % 100 == 0:
            print(f'\\titers: {i + 1}, epoch: {epoch + 1} | loss: {loss.item():.7f}')
        loss.backward()
        model_optim.step()
    print(f'Epoch: {epoch + 1} Train Loss: {np.average(train_loss):.7f}')
"""

CHANGES = (
    Change("two workers", "num_workers", edits={"num_workers=0": "num_workers=2"}),
    Change(
        "unfold and index whole batches",
        "batch_whole",
        edits={
            """        s_end = index + seq_len
        seq_x = self.data_x[index:s_end]
        seq_y = self.data_x[s_end:s_end + pred_len]
        return seq_x, seq_y
""": """        rows = np.asarray(index)[:, None] + np.arange(seq_len + pred_len)
        both = torch.from_numpy(self.data_x[rows])
        return both[:, :seq_len], both[:, seq_len:]
""",
            "train_loader = DataLoader(ETTDataset('ETTh1.csv'), batch_size=64, shuffle=True, num_workers=0, "
            "drop_last=True)": "train_set = ETTDataset('ETTh1.csv')\nsampler = torch.utils.data.BatchSampler("
            "torch.utils.data.RandomSampler(train_set), 64, True)\n"
            "train_loader = DataLoader(train_set, sampler=sampler, batch_size=None)",
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-4)": "lr=1e-4, fused=True)"}),
    Change("print less", "fewer_logs", edits={"if (i + 1) % 100 == 0": "if False"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        outputs = model(batch_x.float())\n": "        with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "            outputs = model(batch_x.float()).float()\n"
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="windows", seconds=6)
