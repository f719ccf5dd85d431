"""A training loop under gpulab.profile, until somebody kills it; it prints when each step ended."""

import sys
import time

import torch
from torch.utils.data import DataLoader

import gpulab

if __name__ == "__main__":
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [torch.ones(8)] * 1_000_000
    with gpulab.profile("killed", level=sys.argv[1]):
        for batch in DataLoader(data, batch_size=4):
            time.sleep(0.002)
            model(batch).sum().backward()
            optimizer.step()
            sys.stdout.write(f"{time.time_ns()}\n")
            sys.stdout.flush()
