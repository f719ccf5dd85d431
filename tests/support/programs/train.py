"""A training loop: 60 steps, each of which waits for its batch."""

import argparse
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((16,), float(index)), index % 2


parser = argparse.ArgumentParser()
parser.add_argument("--fail-at", type=int, default=-1)
options = parser.parse_args()
torch.manual_seed(0)
model = torch.nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (inputs, labels) in enumerate(DataLoader(Slow(), batch_size=4)):
    if step == options.fail_at:
        raise RuntimeError("this step fails")
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
sys.stdout.write(f"weights {model.weight.double().sum().item():.12f}\n")
