"""GRU-D on the records of an intensive care unit: one text file per patient, parsed with pandas in every epoch."""

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.wild.loop import Change, Loop, Namespace, scaled

_PARAMETERS = [
    "Albumin",
    "ALP",
    "ALT",
    "AST",
    "Bilirubin",
    "BUN",
    "Cholesterol",
    "Creatinine",
    "DiasABP",
    "FiO2",
    "GCS",
    "Glucose",
    "HCO3",
    "HCT",
    "HR",
    "K",
    "Lactate",
    "Mg",
    "MAP",
    "MechVent",
    "Na",
    "NIDiasABP",
    "NIMAP",
    "NISysABP",
    "PaCO2",
    "PaO2",
    "pH",
    "Platelets",
    "RespRate",
    "SaO2",
    "SysABP",
    "Temp",
    "TropI",
    "Urine",
    "WBC",
    "Weight",
]


def prepare(scale: float) -> Namespace:
    """Files like those of the PhysioNet challenge of 2012: time, parameter, value."""
    rng = np.random.default_rng(0)
    folder = Path("set-a")
    folder.mkdir()
    count = scaled(192, scale, 16)
    ids = 132539 + np.arange(count)
    frequency = rng.dirichlet(np.full(len(_PARAMETERS), 0.6))
    means = rng.uniform(1, 150, len(_PARAMETERS))
    deaths = rng.random(count) < 0.2
    for record, death in zip(ids, deaths, strict=True):
        rows = int(rng.uniform(200, 550))
        minutes = np.sort(rng.integers(0, 48 * 60, rows))
        which = rng.choice(len(_PARAMETERS), rows, p=frequency)
        values = means[which] * (1 + 0.1 * rng.normal(size=rows) + 0.1 * death)
        lines = [f"00:00,RecordID,{record}", f"00:00,Age,{rng.integers(20, 90)}", "00:00,ICUType,3"]
        lines += [
            f"{m // 60:02d}:{m % 60:02d},{_PARAMETERS[p]},{v:.4g}"
            for m, p, v in zip(minutes, which, values, strict=True)
        ]
        (folder / f"{record}.txt").write_text("Time,Parameter,Value\n" + "\n".join(lines) + "\n")
    outcomes = {"RecordID": ids, "In-hospital_death": deaths.astype(int)}
    pd.DataFrame(outcomes).to_csv("Outcomes-a.txt", index=False)
    stats = {"Parameter": _PARAMETERS, "mean": means, "std": means * 0.15}
    pd.DataFrame(stats).to_csv("stats.csv", index=False)
    return {}


CELL = """
import os
import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from torch.utils.data import Dataset, DataLoader

stats = pd.read_csv('stats.csv').set_index('Parameter')
PARAMS = list(stats.index)
N_HOURS, BATCH_SIZE, EPOCHS = 48, 16, 3

class ICUDataset(Dataset):
    def __init__(self, root, outcomes_file):
        self.root = root
        self.outcomes = pd.read_csv(outcomes_file)

    def __len__(self):
        return len(self.outcomes)

    def __getitem__(self, idx):
        row = self.outcomes.iloc[idx]
        df = pd.read_csv(os.path.join(self.root, str(row['RecordID']) + '.txt'))
        df = df[df['Parameter'].isin(PARAMS)].copy()
        df['Hour'] = df['Time'].apply(lambda t: int(t.split(':')[0]))
        table = df.pivot_table(index='Hour', columns='Parameter', values='Value', aggfunc='mean')
        table = table.reindex(index=range(N_HOURS), columns=PARAMS)
        table = (table - stats['mean']) / stats['std']
        mask = table.notna().astype(np.float32).values
        # hours since the last measurement of each variable
        delta = np.zeros_like(mask)
        for t in range(1, N_HOURS):
            delta[t] = 1 + (1 - mask[t - 1]) * delta[t - 1]
        last = table.ffill().fillna(0).values.astype(np.float32)
        x = table.fillna(0).values.astype(np.float32)
        y = np.float32(row['In-hospital_death'])
        return tuple(torch.from_numpy(a) for a in (x, last, mask, delta)) + (torch.tensor(y),)

class GRUD(nn.Module):
    def __init__(self, n_vars, hidden_size=64):
        super().__init__()
        self.hidden_size = hidden_size
        self.gamma_x = nn.Parameter(torch.zeros(n_vars))
        self.gamma_h = nn.Linear(n_vars, hidden_size)
        self.cell = nn.GRUCell(2 * n_vars, hidden_size)
        self.dropout = nn.Dropout(0.3)
        self.fc = nn.Linear(hidden_size, 1)

    def forward(self, x, last, mask, delta):
        h = torch.zeros(x.size(0), self.hidden_size, device=x.device)
        for t in range(x.size(1)):
            x_t, l_t, m_t, d_t = x[:, t], last[:, t], mask[:, t], delta[:, t]
            g_x = torch.exp(-torch.relu(self.gamma_x * d_t))
            g_h = torch.exp(-torch.relu(self.gamma_h(d_t)))
            x_hat = m_t * x_t + (1 - m_t) * g_x * l_t
            h = self.cell(torch.cat([x_hat, m_t], dim=1), g_h * h)
        return self.fc(self.dropout(h)).squeeze(1)

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
train_set = ICUDataset('set-a', 'Outcomes-a.txt')
train_loader = DataLoader(train_set, batch_size=BATCH_SIZE, shuffle=True)
model = GRUD(len(PARAMS)).to(device)
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(4.0))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)

n_patients = 0
for epoch in range(EPOCHS):
    model.train()
    running_loss, correct, total = 0.0, 0, 0
    for x, last, mask, delta, y in train_loader:
        x, last, mask, delta, y = x.to(device), last.to(device), mask.to(device), delta.to(device), y.to(device)
        optimizer.zero_grad()
        logits = model(x, last, mask, delta)
        loss = criterion(logits, y)
        loss.backward()
        optimizer.step()
        running_loss += loss.item() * y.size(0)
        correct += ((logits > 0).float() == y).sum().item()
        total += y.size(0)
        n_patients += y.size(0)
    print('Epoch %d/%d  loss %.4f  acc %.3f' % (epoch + 1, EPOCHS, running_loss / total, correct / total))
"""

_PARSING = CELL[CELL.index("        df = df[df['Parameter'].isin") : CELL.index("        # hours since")]
_FILLING = CELL[CELL.index("        last = table.ffill()") : CELL.index("        y = np.float32")]
_STEPS = CELL[CELL.index("            x_t, l_t, m_t, d_t = ") : CELL.index("        return self.fc(")]

CHANGES = (
    Change(
        "every file parsed once",
        "cache_items",
        edits={
            "        self.outcomes = pd.read_csv(outcomes_file)\n": ""
            "        self.outcomes = pd.read_csv(outcomes_file)\n"
            "        self.cache = [self.load(i) for i in range(len(self.outcomes))]\n",
            "    def __getitem__(self, idx):\n": "    def __getitem__(self, idx):\n"
            "        return self.cache[idx]\n\n    def load(self, idx):\n",
        },
    ),
    Change(
        "NumPy instead of a pivot table",
        "vectorize_items",
        edits={
            _PARSING: "        codes = pd.Categorical(df['Parameter'], categories=PARAMS).codes\n"
            "        keep = codes >= 0\n"
            "        hours = df['Time'].str[:2].astype(int).values[keep]\n"
            "        index = hours * len(PARAMS) + codes[keep]\n"
            "        sums = np.bincount(index, df['Value'].values[keep], N_HOURS * len(PARAMS))\n"
            "        counts = np.bincount(index, minlength=N_HOURS * len(PARAMS))\n"
            "        table = (sums / np.maximum(counts, 1)).reshape(N_HOURS, -1)\n"
            "        mask = (counts > 0).reshape(N_HOURS, -1).astype(np.float32)\n"
            "        x = ((table - stats['mean'].values) / stats['std'].values).astype(np.float32) * mask\n",
            _FILLING: "        since = np.maximum.accumulate(np.where(mask > 0, np.arange(N_HOURS)[:, None], 0))\n"
            "        last = np.take_along_axis(x, since, 0)\n",
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change(
        "decays of all hours at once",
        "remove_python",
        edits={
            "        for t in range(x.size(1)):\n"
            + _STEPS: "        g_x = torch.exp(-torch.relu(self.gamma_x * delta))\n"
            "        g_h = torch.exp(-torch.relu(self.gamma_h(delta))).unbind(1)\n"
            "        steps = torch.cat([mask * x + (1 - mask) * g_x * last, mask], dim=2).unbind(1)\n"
            "        for step, g in zip(steps, g_h):\n"
            "            h = self.cell(step, g * h)\n"
        },
    ),
    Change(
        "batches of 64",
        "larger_batch",
        edits={"N_HOURS, BATCH_SIZE, EPOCHS = 48, 16, 3": "N_HOURS, BATCH_SIZE, EPOCHS = 48, 64, 3"},
    ),
    Change("fused Adam", "fused_optimizer", edits={"weight_decay=1e-5)": "weight_decay=1e-5, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_patients", seconds=6)
