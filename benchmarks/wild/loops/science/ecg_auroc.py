"""A one-dimensional ResNet on twelve-lead ECGs that shows the AUROC so far in the progress bar after every batch."""

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Standardized ECGs at 100 Hz with 23 subclasses that may occur together."""
    count = scaled(6400, scale, 32)
    labels = (torch.rand(count, 23) < 0.2).float()
    signals = torch.randn(count, 12, 250)
    signals += 0.3 * labels[:, :12, None]
    return {"ecg": signals, "subclass": labels}


CELL = """
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MultilabelAUROC, MultilabelF1Score
from tqdm.auto import tqdm

class ResBlock1d(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv1d(cin, cout, 7, stride, 3, bias=False)
        self.bn1 = nn.BatchNorm1d(cout)
        self.conv2 = nn.Conv1d(cout, cout, 7, 1, 3, bias=False)
        self.bn2 = nn.BatchNorm1d(cout)
        self.skip = nn.Conv1d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.skip(x))

class ECGNet(nn.Module):
    def __init__(self, n_leads=12, n_classes=23):
        super().__init__()
        self.body = nn.Sequential(ResBlock1d(n_leads, 24, 2), ResBlock1d(24, 32, 2), ResBlock1d(32, 48, 2))
        self.head = nn.Linear(48, n_classes)

    def forward(self, x):
        return self.head(self.body(x).mean(-1))

loader = DataLoader(TensorDataset(ecg, subclass), batch_size=32, shuffle=True)
model = ECGNet()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=5e-3, epochs=1, steps_per_epoch=len(loader))
loss_fn = nn.BCEWithLogitsLoss()
auroc = MultilabelAUROC(num_labels=23)
f1 = MultilabelF1Score(num_labels=23)

n_ecgs = 0
for epoch in range(1):
    auroc.reset(); f1.reset()
    bar = tqdm(loader, desc=f'epoch {epoch}')
    for x, y in bar:
        opt.zero_grad()
        logits = model(x)
        loss = loss_fn(logits, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        probs = logits.detach().sigmoid()
        auroc.update(probs, y.int())
        f1.update(probs, y.int())
        bar.set_postfix(loss=loss.item(), auroc=auroc.compute().item(), f1=f1.compute().item())
        n_ecgs += len(x)
    print(f'epoch {epoch} AUROC {auroc.compute():.4f} F1 {f1.compute():.4f}')
"""

CHANGES = (
    Change(
        "metrics at the end of an epoch only",
        "fewer_logs",
        edits={
            "        bar.set_postfix(loss=loss.item(), auroc=auroc.compute().item(), f1=f1.compute().item())\n": ""
            "        bar.set_postfix(loss=loss.item())\n"
        },
    ),
    Change(
        "AUROC with a hundred thresholds",
        "other",
        edits={"MultilabelAUROC(num_labels=23)": "MultilabelAUROC(num_labels=23, thresholds=100)"},
    ),
    Change(
        "index whole batches",
        "batch_whole",
        edits={
            "loader = DataLoader(TensorDataset(ecg, subclass), batch_size=32, shuffle=True)": ""
            "train_set = TensorDataset(ecg, subclass)\nsampler = torch.utils.data.BatchSampler("
            "torch.utils.data.RandomSampler(train_set), 32, False)\n"
            "loader = DataLoader(train_set, sampler=sampler, batch_size=None)"
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change("fused AdamW", "fused_optimizer", edits={"lr=2e-3)": "lr=2e-3, fused=True)"}),
    Change(
        "foreach clipping",
        "clip_grad",
        edits={"model.parameters(), 1.0)": "model.parameters(), 1.0, foreach=True)"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_ecgs", seconds=7)
