"""Daily runoff of many basins by an entity-aware LSTM whose cell is written by hand, as in hydrologists' scripts."""

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Per basin a text file of weather and one of discharge (a bucket model with snow), and a table of attributes."""
    rng = np.random.default_rng(0)
    days = pd.date_range("1998-10-01", "2001-09-30")
    Path("camels").mkdir()
    season = np.cos(2 * np.pi * (days.dayofyear.to_numpy() - 200) / 365.25)
    rows = []
    for number in range(scaled(10, scale)):
        basin = f"{1013500 + 7919 * number:08d}"
        wet, warmth, drain, area, slope = rng.uniform([0.2, 2, 0.02, 50, 5], [0.5, 14, 0.15, 2500, 120])
        prcp = rng.gamma(0.8, 9, len(days)) * (rng.random(len(days)) < wet)
        tmean = warmth + 11 * season + rng.normal(0, 3, len(days))
        srad = 220 + 140 * season - 60 * (prcp > 0) + rng.normal(0, 25, len(days))
        vp = 610 * np.exp(17.3 * tmean / (tmean + 237)) * 0.7
        snow = store = 0.0
        flow = []
        for rain, temperature in zip(prcp, tmean, strict=True):
            melt = min(snow, max(0.0, 3 * temperature))
            snow += (rain if temperature < 0 else 0) - melt
            store += melt + (rain if temperature >= 0 else 0) - min(store, max(0.0, 0.12 * temperature))
            flow.append(drain * store)
            store -= flow[-1]
        frame = pd.DataFrame({"date": days, "PRCP(mm/day)": prcp, "SRAD(W/m2)": srad, "Tmax(C)": tmean + 5})
        frame = frame.assign(**{"Tmin(C)": tmean - 5, "Vp(Pa)": vp}).round(2)
        frame.to_csv(f"camels/{basin}_forcing.txt", sep="\t", index=False)
        noisy = np.array(flow) * rng.lognormal(0, 0.05, len(days))
        pd.DataFrame({"date": days, "QObs(mm/d)": noisy.round(4)}).to_csv(
            f"camels/{basin}_streamflow.txt", sep="\t", index=False
        )
        rows.append((basin, area, slope, wet, warmth, prcp.mean(), (tmean < 0).mean(), drain + rng.normal(0, 0.01)))
    columns = ["gauge_id", "area", "slope", "high_prec_freq", "t_mean", "p_mean", "frac_snow", "soil_conductivity"]
    pd.DataFrame(rows, columns=columns).to_csv("camels/attributes.csv", index=False)
    return {}


CELL = """
from pathlib import Path
from typing import Tuple

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import tqdm
from torch.utils.data import DataLoader, Dataset

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
CAMELS_ROOT = Path("camels")
SEQ_LENGTH = 90
HIDDEN_SIZE = 64
BATCH_SIZE = 256
DROPOUT = 0.4
EPOCHS = 3
LEARNING_RATES = {1: 1e-3, 2: 5e-4, 3: 1e-4}
CLIP_VALUE = 1.0
TRAIN_DATES = ("1998-10-01", "2000-09-30")
VAL_DATES = ("2000-10-01", "2001-09-30")


def load_forcing(basin: str) -> pd.DataFrame:
    df = pd.read_csv(CAMELS_ROOT / f"{basin}_forcing.txt", sep="\\t", parse_dates=["date"])
    return df.set_index("date")


def load_discharge(basin: str) -> pd.Series:
    df = pd.read_csv(CAMELS_ROOT / f"{basin}_streamflow.txt", sep="\\t", parse_dates=["date"])
    return df.set_index("date")["QObs(mm/d)"]


def reshape_data(x: np.ndarray, y: np.ndarray, seq_length: int) -> Tuple[np.ndarray, np.ndarray]:
    num_samples, num_features = x.shape
    x_new = np.zeros((num_samples - seq_length + 1, seq_length, num_features), dtype=np.float32)
    y_new = np.zeros((num_samples - seq_length + 1, 1), dtype=np.float32)
    for i in range(0, x_new.shape[0]):
        x_new[i] = x[i:i + seq_length]
        y_new[i] = y[i + seq_length - 1]
    return x_new, y_new


class CamelsTXT(Dataset):
    \"\"\"All samples of one basin.\"\"\"

    def __init__(self, basin, dates, attributes, scalar, is_train):
        forcing = load_forcing(basin)
        discharge = load_discharge(basin)
        start = pd.to_datetime(dates[0])
        if not is_train:
            # warm up on the days before the period
            start = start - pd.DateOffset(days=SEQ_LENGTH - 1)
        x = forcing[start:dates[1]].values
        y = discharge[start:dates[1]].values
        x = (x - scalar["x_mean"]) / scalar["x_std"]
        if is_train:
            self.q_std = float(np.std(y))
            y = (y - scalar["y_mean"]) / scalar["y_std"]
        x, y = reshape_data(x, y.reshape(-1, 1), SEQ_LENGTH)
        self.x = torch.from_numpy(x)
        self.y = torch.from_numpy(y)
        self.attributes = torch.from_numpy(attributes.loc[basin].values.astype(np.float32))
        self.is_train = is_train

    def __len__(self):
        return len(self.x)

    def __getitem__(self, idx: int):
        if self.is_train:
            return self.x[idx], self.attributes, self.y[idx], torch.tensor([self.q_std], dtype=torch.float32)
        return self.x[idx], self.attributes, self.y[idx]


class NSELoss(nn.Module):
    \"\"\"Squared errors, each weighted by the variability of the discharge of its basin.\"\"\"

    def __init__(self, eps: float = 0.1):
        super().__init__()
        self.eps = eps

    def forward(self, y_pred: torch.Tensor, y_true: torch.Tensor, q_stds: torch.Tensor):
        squared_error = (y_pred - y_true) ** 2
        weights = 1 / (q_stds + self.eps) ** 2
        return torch.mean(weights * squared_error)


class EALSTM(nn.Module):
    def __init__(self, input_size_dyn: int, input_size_stat: int, hidden_size: int, initial_forget_bias: int = 5):
        super().__init__()
        self.hidden_size = hidden_size
        self.weight_ih = nn.Parameter(torch.FloatTensor(input_size_dyn, 3 * hidden_size))
        self.weight_hh = nn.Parameter(torch.FloatTensor(hidden_size, 3 * hidden_size))
        self.weight_sh = nn.Parameter(torch.FloatTensor(input_size_stat, hidden_size))
        self.bias = nn.Parameter(torch.FloatTensor(3 * hidden_size))
        self.bias_s = nn.Parameter(torch.FloatTensor(hidden_size))
        self.initial_forget_bias = initial_forget_bias
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.orthogonal_(self.weight_ih.data)
        nn.init.orthogonal_(self.weight_sh)
        weight_hh_data = torch.eye(self.hidden_size).repeat(1, 3)
        self.weight_hh.data = weight_hh_data
        nn.init.constant_(self.bias.data, val=0)
        nn.init.constant_(self.bias_s.data, val=0)
        self.bias.data[:self.hidden_size] = self.initial_forget_bias

    def forward(self, x_d: torch.Tensor, x_s: torch.Tensor):
        x_d = x_d.transpose(0, 1)
        seq_len, batch_size, _ = x_d.size()
        h_0 = x_d.new_zeros(batch_size, self.hidden_size)
        c_0 = x_d.new_zeros(batch_size, self.hidden_size)
        h_x = (h_0, c_0)
        h_n, c_n = [], []

        # the input gate depends on the attributes only
        bias_batch = self.bias.unsqueeze(0).expand(batch_size, *self.bias.size())
        bias_s_batch = self.bias_s.unsqueeze(0).expand(batch_size, *self.bias_s.size())
        i = torch.sigmoid(torch.addmm(bias_s_batch, x_s, self.weight_sh))

        for t in range(seq_len):
            h_0, c_0 = h_x
            gates = torch.addmm(bias_batch, h_0, self.weight_hh) + torch.mm(x_d[t], self.weight_ih)
            f, o, g = gates.chunk(3, 1)
            c_1 = torch.sigmoid(f) * c_0 + i * torch.tanh(g)
            h_1 = torch.sigmoid(o) * torch.tanh(c_1)
            h_n.append(h_1)
            c_n.append(c_1)
            h_x = (h_1, c_1)

        h_n = torch.stack(h_n, 0).transpose(0, 1)
        c_n = torch.stack(c_n, 0).transpose(0, 1)
        return h_n, c_n


class Model(nn.Module):
    def __init__(self, input_size_dyn: int, input_size_stat: int, hidden_size: int, dropout: float):
        super().__init__()
        self.lstm = EALSTM(input_size_dyn, input_size_stat, hidden_size)
        self.dropout = nn.Dropout(p=dropout)
        self.fc = nn.Linear(hidden_size, 1)

    def forward(self, x_d: torch.Tensor, x_s: torch.Tensor):
        h_n, c_n = self.lstm(x_d, x_s)
        last_h = self.dropout(h_n[:, -1, :])
        out = self.fc(last_h)
        return out, h_n, c_n


def calc_nse(obs: np.ndarray, sim: np.ndarray) -> float:
    denominator = np.sum((obs - np.mean(obs)) ** 2)
    numerator = np.sum((sim - obs) ** 2)
    return float(1 - numerator / denominator)


def evaluate_basin(model: nn.Module, loader: DataLoader) -> Tuple[np.ndarray, np.ndarray]:
    model.eval()
    preds, obs = None, None
    with torch.no_grad():
        for data in loader:
            x_d, x_s, y = data
            x_d, x_s = x_d.to(DEVICE), x_s.to(DEVICE)
            p = model(x_d, x_s)[0]
            if preds is None:
                preds, obs = p.detach().cpu(), y
            else:
                preds = torch.cat((preds, p.detach().cpu()), 0)
                obs = torch.cat((obs, y), 0)
    return preds.numpy() * scalar["y_std"] + scalar["y_mean"], obs.numpy()


attributes = pd.read_csv(CAMELS_ROOT / "attributes.csv", dtype={"gauge_id": str}).set_index("gauge_id")
basins = attributes.index.tolist()
attributes = (attributes - attributes.mean()) / (attributes.std() + 1e-6)
attributes = attributes.fillna(0.0)

# statistics of the training period over all basins
x_all = np.concatenate([load_forcing(b)[TRAIN_DATES[0]:TRAIN_DATES[1]].values for b in basins])
y_all = np.concatenate([load_discharge(b)[TRAIN_DATES[0]:TRAIN_DATES[1]].values for b in basins])
scalar = {"x_mean": x_all.mean(0), "x_std": x_all.std(0), "y_mean": y_all.mean(), "y_std": y_all.std()}

ds_train = torch.utils.data.ConcatDataset([CamelsTXT(b, TRAIN_DATES, attributes, scalar, True) for b in basins])
train_loader = DataLoader(ds_train, batch_size=BATCH_SIZE, shuffle=True)
val_loaders = {b: DataLoader(CamelsTXT(b, VAL_DATES, attributes, scalar, False), batch_size=BATCH_SIZE, shuffle=False)
               for b in basins}

model = Model(5, attributes.shape[1], HIDDEN_SIZE, DROPOUT).to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATES[1])
loss_func = NSELoss()

windows_seen = 0
for epoch in range(1, EPOCHS + 1):
    for param_group in optimizer.param_groups:
        param_group["lr"] = LEARNING_RATES[epoch]
    model.train()
    pbar = tqdm.tqdm(train_loader)
    pbar.set_description(f"# Epoch {epoch}")
    for x_d, x_s, y, q_stds in pbar:
        optimizer.zero_grad()
        x_d, x_s, y, q_stds = x_d.to(DEVICE), x_s.to(DEVICE), y.to(DEVICE), q_stds.to(DEVICE)
        predictions = model(x_d, x_s)[0]
        loss = loss_func(predictions, y, q_stds)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_VALUE)
        optimizer.step()
        windows_seen += len(y)
        pbar.set_postfix_str(f"Loss: {loss.item():5f}")

    torch.save(model.state_dict(), f"model_epoch{epoch}.pt")
    nses = {}
    for basin in basins:
        preds, obs = evaluate_basin(model, val_loaders[basin])
        nses[basin] = calc_nse(obs, preds)
    print(f"Epoch {epoch}: median NSE {np.median(list(nses.values())):.3f}, mean {np.mean(list(nses.values())):.3f}")
"""

GATES = "torch.addmm(bias_batch, h_0, self.weight_hh) + torch.mm(x_d[t], self.weight_ih)"
STACKED = "        c_n = torch.stack(c_n, 0).transpose(0, 1)\n"
LOADER = "train_loader = DataLoader(ds_train, batch_size=BATCH_SIZE, shuffle=True)\n"
TRAINING = "    for x_d, x_s, y, q_stds in pbar:\n"
EVALUATION = """        preds, obs = evaluate_basin(model, val_loaders[basin])
        nses[basin] = calc_nse(obs, preds)
"""
FORWARD = """        predictions = model(x_d, x_s)[0]
        loss = loss_func(predictions, y, q_stds)
"""

CHANGES = (
    Change(
        "inputs of all days projected in one product",
        "other",
        edits={
            "        for t in range(seq_len):\n": ""
            "        projected = (x_d @ self.weight_ih + self.bias).unbind(0)\n"
            "        for t in range(seq_len):\n",
            GATES: "torch.addmm(projected[t], h_0, self.weight_hh)",
            "            c_n.append(c_1)\n": "",
            STACKED: "        c_n = c_1\n",
        },
    ),
    Change(
        "batches indexed from tensors",
        "batch_whole",
        edits={
            LOADER: f"{LOADER}"
            "whole_x = torch.cat([d.x for d in ds_train.datasets])\n"
            "whole_y = torch.cat([d.y for d in ds_train.datasets])\n"
            "whole_s = torch.stack([d.attributes for d in ds_train.datasets])\n"
            "whole_q = torch.tensor([[d.q_std] for d in ds_train.datasets], dtype=torch.float32)\n"
            "basin_of = torch.repeat_interleave(torch.tensor([len(d) for d in ds_train.datasets]))\n",
            "    pbar = tqdm.tqdm(train_loader)\n": ""
            "    pbar = tqdm.tqdm(torch.randperm(len(whole_x)).split(BATCH_SIZE))\n",
            TRAINING: "    for idx in pbar:\n"
            "        x_d, y = whole_x[idx], whole_y[idx]\n"
            "        x_s, q_stds = whole_s[basin_of[idx]], whole_q[basin_of[idx]]\n",
        },
    ),
    Change(
        "all basins validated together",
        "other",
        edits={
            "    nses = {}\n": ""
            "    nses = {}\n"
            "    val_sets = [val_loaders[b].dataset for b in basins]\n"
            "    sizes = [len(d) for d in val_sets]\n"
            "    model.eval()\n"
            "    with torch.no_grad():\n"
            "        all_x = torch.cat([d.x for d in val_sets]).split(1024)\n"
            "        all_s = torch.cat([d.attributes.expand(len(d), -1) for d in val_sets]).split(1024)\n"
            "        sims = torch.cat([model(x, s)[0] for x, s in zip(all_x, all_s)]).split(sizes)\n"
            "    sims = {b: s.numpy() * scalar['y_std'] + scalar['y_mean'] for b, s in zip(basins, sims)}\n",
            EVALUATION: "        nses[basin] = calc_nse(val_loaders[basin].dataset.y.numpy(), sims[basin])\n",
        },
    ),
    Change("batches of 1024", "larger_batch", edits={"BATCH_SIZE = 256": "BATCH_SIZE = 1024"}),
    Change("two workers", "num_workers", edits={LOADER: LOADER.replace("shuffle=True", "shuffle=True, num_workers=2")}),
    Change("fused Adam", "fused_optimizer", edits={"lr=LEARNING_RATES[1])": "lr=LEARNING_RATES[1], fused=True)"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            FORWARD: "        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):\n"
            + "".join(f"    {line}\n" for line in FORWARD.splitlines())
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="windows_seen", seconds=8)
