"""A small regression network that writes a CSV row, a progress line and statistics of all weights in every step."""

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Sensor readings in memory."""
    count = scaled(153_600, scale, 256)
    x = torch.randn(count, 24)
    return {"x": x, "y": x[:, :4].prod(1, keepdim=True) + 0.1 * torch.randn(count, 1)}


CELL = """
import csv, os, sys, time
from collections import defaultdict
import torch
import torch.nn as nn
from tqdm import tqdm

class Logger:
    def __init__(self, path):
        self.path, self.rows, self.history = path, 0, defaultdict(list)

    def log(self, **values):
        new = not os.path.exists(self.path)
        with open(self.path, 'a', newline='') as f:
            writer = csv.DictWriter(f, fieldnames=list(values))
            if new:
                writer.writeheader()
            writer.writerow(values)
        for k, v in values.items():
            self.history[k].append(v)

model = nn.Sequential(nn.Linear(24, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(x) // 64)
logger, batch_size, log_every = Logger('log.csv'), 64, 1
samples = 0
pbar = tqdm(range(len(x) // batch_size), file=sys.stderr)
for step in pbar:
    xb, yb = x[step * batch_size:(step + 1) * batch_size], y[step * batch_size:(step + 1) * batch_size]
    loss = nn.functional.mse_loss(model(xb), yb)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    samples += len(xb)
    if step % log_every == 0:
        stats = {}
        for name, p in model.named_parameters():
            stats[name + '.mean'] = p.data.mean().item()
            stats[name + '.std'] = p.data.std().item()
            stats[name + '.grad'] = p.grad.norm().item()
            stats[name + '.hist'] = torch.histc(p.data, bins=64).tolist()[0]
        logger.log(step=step, time=time.time(), loss=loss.item(), lr=scheduler.get_last_lr()[0], **stats)
        pbar.set_description(f'loss {loss.item():.4f}')
        pbar.refresh()
"""

CHANGES = (
    Change("log every fiftieth step", "fewer_logs", edits={"Logger('log.csv'), 64, 1": "Logger('log.csv'), 64, 50"}),
    Change(
        "keep the file open",
        "other",
        edits={
            "        new = not os.path.exists(self.path)\n        with open(self.path, 'a', newline='') as f:\n"
            "            writer = csv.DictWriter(f, fieldnames=list(values))\n            if new:\n"
            "                writer.writeheader()\n            writer.writerow(values)\n": ""
            "        if self.rows == 0:\n            self.file = open(self.path, 'a', newline='')\n"
            "            self.writer = csv.DictWriter(self.file, fieldnames=list(values))\n"
            "            self.writer.writeheader()\n        self.writer.writerow(values)\n        self.rows += 1\n"
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
    Change("one thread", "threads", edits={"samples = 0\n": "samples = 0\ntorch.set_num_threads(1)\n"}),
    Change("batches of 256", "larger_batch", edits={"'log.csv'), 64, 1": "'log.csv'), 256, 1"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="samples", seconds=5)
