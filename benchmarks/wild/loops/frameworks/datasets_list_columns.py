"""Activity recognition from a Hugging Face data set whose windows are nested lists, with `with_format("torch")`."""

import datasets
import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """An Arrow data set of windows of nine sensor channels, as a map over raw recordings leaves it."""
    rng = np.random.default_rng(0)
    count = scaled(1600, scale, 64)
    labels = rng.integers(0, 6, count)
    phase = np.arange(128)[None, :, None] * (labels[:, None, None] + 1) * 0.1
    windows = (np.sin(phase) + rng.normal(size=(count, 128, 9))).astype(np.float32)
    features = datasets.Features(
        {
            "signal": datasets.List(datasets.List(datasets.Value("float32"))),
            "label": datasets.Value("int64"),
            "subject": datasets.Value("int64"),
        }
    )
    columns = {"signal": list(windows), "label": labels.tolist(), "subject": rng.integers(0, 30, count).tolist()}
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(columns, features=features).save_to_disk("har")
    return {}


CELL = """
import torch
import torch.nn as nn
from datasets import load_from_disk
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

ds = load_from_disk('har').remove_columns('subject')
ds = ds.with_format('torch')
train_dl = DataLoader(ds, batch_size=64, shuffle=True)

class HARNet(nn.Module):
    def __init__(self, n_channels=9, n_classes=6):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(n_channels, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(32, 64, 5, padding=2), nn.BatchNorm1d(64), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(64, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
        self.head = nn.Linear(64, n_classes)

    def forward(self, x):
        return self.head(self.features(x.transpose(1, 2)))

model = HARNet()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
loss_fn = nn.CrossEntropyLoss()
windows_seen = 0

for epoch in range(2):
    running, correct = 0.0, 0
    bar = tqdm(train_dl, desc=f'epoch {epoch}')
    for batch in bar:
        x, y = batch['signal'], batch['label']
        logits = model(x)
        loss = loss_fn(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.item()
        correct += (logits.argmax(-1) == y).sum().item()
        windows_seen += len(y)
        bar.set_postfix(loss=f'{loss.item():.3f}')
    print(f'epoch {epoch}: loss {running / len(train_dl):.4f}, acc {correct / len(ds):.4f}')
"""

LOADER = "train_dl = DataLoader(ds, batch_size=64, shuffle=True)"

CHANGES = (
    Change(
        "windows as fixed-size arrays",
        "storage_format",
        edits={
            "from datasets import load_from_disk": "from datasets import Array2D, load_from_disk",
            "ds = ds.with_format('torch')": ""
            "ds = ds.cast_column('signal', Array2D((128, 9), 'float32')).with_format('torch')",
        },
    ),
    Change(
        "tensors in memory, read once",
        "cache_items",
        edits={
            "ds = ds.with_format('torch')\n": ""
            "import numpy as np\n"
            "table = ds.data\n"
            "flat = table['signal'].combine_chunks().flatten().flatten().to_numpy(zero_copy_only=False)\n"
            "labels = torch.from_numpy(np.array(table['label'].to_numpy()))\n"
            "ds = [{'signal': s, 'label': y} for s, y in zip(torch.from_numpy(flat.copy()).view(-1, 128, 9), labels)]\n"
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change(
        "whole batches from Arrow",
        "batch_whole",
        edits={
            LOADER: "sampler = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(ds), 64, False)\n"
            "train_dl = DataLoader(ds, sampler=sampler, batch_size=None)"
        },
    ),
    Change(
        "no progress bar, loss read once",
        "fewer_logs",
        edits={
            "    bar = tqdm(train_dl, desc=f'epoch {epoch}')\n": "    bar = train_dl\n",
            "        running += loss.item()\n": "        running += loss.detach()\n",
            "        bar.set_postfix(loss=f'{loss.item():.3f}')\n": "",
        },
    ),
    Change("fused AdamW", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="windows_seen", seconds=6)
