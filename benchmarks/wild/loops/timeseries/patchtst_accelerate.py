"""Forecasts of transformer temperatures by PatchTST with Accelerate: a data frame cut with iloc, early stopping."""

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Seven hourly series with daily and weekly seasons."""
    rng = np.random.default_rng(0)
    train, held_out = scaled(2880, scale, 32), 256
    rows = train + held_out + 2 * (256 + 24)
    hours = np.arange(rows)
    columns: dict[str, object] = {"date": pd.date_range("2016-07-01", periods=rows, freq="h")}
    for index, name in enumerate(("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")):
        season = np.sin(2 * np.pi * (hours / 24 + index / 7)) + 0.5 * np.sin(2 * np.pi * hours / 168)
        columns[name] = 10 + 4 * season + np.cumsum(rng.normal(0, 0.1, rows)) + rng.normal(0, 0.5, rows)
    return {"df": pd.DataFrame(columns), "n_train": train, "n_valid": held_out}


CELL = """
import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import PatchTSTConfig, PatchTSTForPrediction, get_cosine_schedule_with_warmup

set_seed(2023)
context_length = 256
forecast_horizon = 24
patch_length = 16
num_workers = 0
batch_size = 32
forecast_columns = list(df.columns[1:])

train_end = n_train + context_length + forecast_horizon - 1
train_df = df.iloc[:train_end].copy()
valid_df = df.iloc[train_end:train_end + n_valid + context_length + forecast_horizon - 1].copy()
mean, std = train_df[forecast_columns].mean(), train_df[forecast_columns].std()
train_df[forecast_columns] = (train_df[forecast_columns] - mean) / std
valid_df[forecast_columns] = (valid_df[forecast_columns] - mean) / std


class ForecastDFDataset(Dataset):
    def __init__(self, data, target_columns, context_length, prediction_length):
        self.data = data.reset_index(drop=True)
        self.y_cols = target_columns
        self.context_length = context_length
        self.prediction_length = prediction_length

    def __len__(self):
        return len(self.data) - self.context_length - self.prediction_length + 1

    def __getitem__(self, index):
        past_end = index + self.context_length
        seq_x = self.data[self.y_cols].iloc[index:past_end].values
        seq_y = self.data[self.y_cols].iloc[past_end:past_end + self.prediction_length].values
        return {
            'past_values': torch.from_numpy(np.nan_to_num(seq_x)).float(),
            'future_values': torch.from_numpy(np.nan_to_num(seq_y)).float(),
            'past_observed_mask': torch.from_numpy(~np.isnan(seq_x)),
        }


train_dataset = ForecastDFDataset(train_df, forecast_columns, context_length, forecast_horizon)
valid_dataset = ForecastDFDataset(valid_df, forecast_columns, context_length, forecast_horizon)

config = PatchTSTConfig(
    num_input_channels=len(forecast_columns),
    context_length=context_length,
    patch_length=patch_length,
    patch_stride=patch_length,
    prediction_length=forecast_horizon,
    d_model=64,
    num_attention_heads=4,
    num_hidden_layers=2,
    ffn_dim=128,
    ff_dropout=0.2,
    head_dropout=0.2,
    scaling='std',
    loss='mse',
)
model = PatchTSTForPrediction(config)

num_epochs, patience = 2, 10
accelerator = Accelerator(cpu=not torch.cuda.is_available(), mixed_precision='no')
train_loader = DataLoader(train_dataset, batch_size=batch_size, shuffle=True, num_workers=num_workers)
valid_loader = DataLoader(valid_dataset, batch_size=batch_size, num_workers=num_workers)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = get_cosine_schedule_with_warmup(optimizer, 10, num_epochs * len(train_loader))
model, optimizer, train_loader, valid_loader, scheduler = accelerator.prepare(
    model, optimizer, train_loader, valid_loader, scheduler)


def evaluate():
    model.eval()
    losses = []
    for batch in valid_loader:
        with torch.no_grad():
            outputs = model(**batch)
        losses.append(accelerator.gather_for_metrics(outputs.loss.repeat(batch_size)))
    model.train()
    return torch.cat(losses).mean().item()


windows_seen, best, bad_epochs = 0, float('inf'), 0
for epoch in range(num_epochs):
    model.train()
    total_loss = 0
    for step, batch in enumerate(train_loader):
        outputs = model(**batch)
        loss = outputs.loss
        total_loss += loss.detach().float()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        windows_seen += len(batch['past_values'])
    valid_loss = evaluate()
    accelerator.print(f'epoch {epoch}: train {total_loss.item() / len(train_loader):.4f} valid {valid_loss:.4f}')
    if valid_loss < best:
        best, bad_epochs = valid_loss, 0
        accelerator.save_state('checkpoint/patchtst')
    else:
        bad_epochs += 1
        if bad_epochs >= patience:
            break
"""

CHANGES = (
    Change(
        "windows of a NumPy array",
        "vectorize_items",
        edits={
            "        self.data = data.reset_index(drop=True)\n": "        self.data = data[target_columns].to_numpy('float32')\n"
            "        self.observed = ~np.isnan(self.data)\n        self.data = np.nan_to_num(self.data)\n",
            "        seq_x = self.data[self.y_cols].iloc[index:past_end].values\n": "",
            "        seq_y = self.data[self.y_cols].iloc[past_end:past_end + self.prediction_length].values\n": "",
            "torch.from_numpy(np.nan_to_num(seq_x)).float()": "torch.from_numpy(self.data[index:past_end])",
            "torch.from_numpy(np.nan_to_num(seq_y)).float()": ""
            "torch.from_numpy(self.data[past_end:past_end + self.prediction_length])",
            "torch.from_numpy(~np.isnan(seq_x))": "torch.from_numpy(self.observed[index:past_end])",
        },
    ),
    Change("two workers", "num_workers", edits={"num_workers = 0": "num_workers = 2"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        outputs = model(**batch)\n        loss = outputs.loss\n": ""
            "        with torch.autocast(accelerator.device.type, dtype=torch.bfloat16):\n"
            "            outputs = model(**batch)\n        loss = outputs.loss\n"
        },
    ),
    Change("batches of 128", "larger_batch", edits={"batch_size = 32": "batch_size = 128"}),
    Change("fused AdamW", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
    Change(
        "evaluate after the last epoch only, no state",
        "eval_less_often",
        edits={
            "    valid_loss = evaluate()\n": "    valid_loss = evaluate() if epoch == num_epochs - 1 else best\n",
            "        accelerator.save_state('checkpoint/patchtst')\n": "",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="windows_seen", seconds=11)
