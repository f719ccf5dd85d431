"""Small real training loops, each with one planted flaw, and their healthy twins.

They show what a diagnosis should find, to tests and to learners: each names the rule that ought to speak first. The
loops are ordinary PyTorch without a call of gpulab in them, and can be imported, which DataLoader workers need.

    images      JPEG files decoded by the main process          starving
    waiting     items from slow storage, no worker or one       starving, few_workers
    counting    items counted in pure Python, few cores         starving
    audio       preprocessing in the loop's own Python code     host_python
    tiny_ops    a deep, narrow model at batch size 1            dispatch_bound
    matmul      large matrix products, nothing wrong            device_bound

`WORKLOADS` holds them all; `workload(name)` gives one.
"""

from __future__ import annotations

from gpulab.errors import GpulabError
from gpulab.workloads.audio import AUDIO
from gpulab.workloads.counting import COUNTING
from gpulab.workloads.images import IMAGES
from gpulab.workloads.matmul import MATMUL
from gpulab.workloads.tiny_ops import TINY_OPS
from gpulab.workloads.waiting import WAITING
from gpulab.workloads.workload import Workload

__all__ = ["WORKLOADS", "Workload", "workload"]

WORKLOADS: tuple[Workload, ...] = (*IMAGES, *WAITING, *COUNTING, *AUDIO, *TINY_OPS, *MATMUL)


def workload(name: str) -> Workload:
    """The workload of this name."""
    for one in WORKLOADS:
        if one.name == name:
            return one
    raise GpulabError(
        f"There is no workload {name!r}.",
        why=f"the workloads are {', '.join(one.name for one in WORKLOADS)}",
        fix="use one of these names",
    )
