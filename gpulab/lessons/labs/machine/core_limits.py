"""How many cores programs count in a process that may use one of them only, as in many containers and cluster jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

_PROGRAM = """
import json, os
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import torch
affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
print(json.dumps({"all_cores": os.cpu_count(), "affinity": affinity, "threads": torch.get_num_threads()}))
"""


@dataclass(frozen=True, kw_only=True)
class CoreCounts:
    """What is counted in a process that may use one core."""

    all_cores: int  # os.cpu_count()
    affinity: int | None  # len(os.sched_getaffinity(0)); None where the system has no such limits
    threads: int  # that PyTorch uses


def counts_with_one_core() -> CoreCounts:
    """Start a process, limit it to one core, and return what it counts."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return CoreCounts(**json.loads(done.stdout))
