"""Data-parallel training over gloo, started by torchrun, or by this script with `--start METHOD`.

With `--start script` it runs itself again, as Lightning's strategies do.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--start", default="")
parser.add_argument("--slow-rank", type=int, default=-1)
parser.add_argument("--rotating", action="store_true")
parser.add_argument("--kill-rank", type=int, default=-1)
parser.add_argument("--fail-rank", type=int, default=-1)
parser.add_argument("--steps", type=int, default=60)


def train(rank, options):
    if options.start:
        os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE="2")
        store = f"file://{os.environ['STORE']}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    else:
        dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Linear(128, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(options.steps):
        late = step % 2 if options.rotating else options.slow_rank
        if rank == late:
            time.sleep(0.03)
        if step == options.steps - 5 and rank == options.kill_rank:
            time.sleep(2)  # the copy of the recording is written once a second
            os.kill(os.getpid(), 9)
        if step == options.steps - 5 and rank == options.fail_rank:
            raise RuntimeError("this rank fails")
        loss = model(torch.randn(16, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    options = parser.parse_args()
    if options.start == "script":
        local_rank = os.environ.setdefault("LOCAL_RANK", "0")
        os.environ["WORLD_SIZE"] = "2"
        if local_rank == "0":
            again = [sys.executable, str(Path(sys.argv[0]).resolve()), *sys.argv[1:]]
            other = subprocess.Popen(again, env={**os.environ, "LOCAL_RANK": "1"})
        train(int(local_rank), options)
        if local_rank == "0":
            sys.exit(other.wait())
    elif options.start:
        mp.start_processes(train, args=(options,), nprocs=2, start_method=options.start)
    else:
        train(0, options)
