"""The twelve cases of lesson 20 as data: what was planted, what it is taken for, and the counter that tells them apart.

The answers stand here. Who does the drills looks at the runs instead (gpulab.lessons.labs.drills.drills).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CAUSES: Mapping[str, str] = {
    "no_workers": "the main process builds the batches while the model waits",
    "too_few_workers": "workers wait for their items, and there are too few of them to wait together",
    "cpu_bound_loading": "items need more CPU time than the cores have",
    "host_python": "Python code of the loop runs while nothing computes",
    "dispatch_bound": "operators are so small that calling them takes longer than they do",
    "host_syncs": "the loop fetches results, and waits for them, in every step",
    "pageable_copies": "batches are copied from memory that is not pinned",
    "no_tf32": "matrix products in float32 that leave the tensor cores unused",
    "unfused_elementwise": "one kernel after the other reads and writes the same large tensors",
    "small_batch": "kernels with less work than the GPU has room for",
    "unfused_optimizer": "the optimizer updates one parameter tensor after the other",
    "memory_growth": "something keeps tensors, so that memory grows with every step",
    "device_bound": "nothing: the device computes as fast as it can",
}
ACTIONS: Mapping[str, str] = {
    "start workers": "num_workers=..., where there were none",
    "more workers": "a larger num_workers",
    "cheaper items": "compute each item once and keep it, or compute it faster",
    "move the code": "out of the loop: vectorised, or into the data set",
    "fewer calls": "torch.compile with CUDA graphs, or more rows in each call",
    "fetch later": "keep results on the GPU, and fetch them after the loop",
    "pin memory": "pin_memory=True, and copy with non_blocking=True",
    "tensor cores": "TF32, or autocast to bfloat16",
    "one operator": "scaled_dot_product_attention, or torch.compile",
    "larger batch": "more samples a step, while samples per second rise",
    "fused optimizer": "fused=True",
    "keep numbers": ".item() or .detach() before anything is kept",
    "leave it": "no change; a faster device is the only thing left",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One anonymous run, and the answer to it."""

    number: int
    called: str  # what its owner calls it, which proves nothing
    cause: str
    action: str
    rival: str  # what it is easily taken for
    rival_file: str  # a dataset whose run has the rival's cause
    excluded_by: tuple[str, ...]  # counters that tell the two apart, the best first
    because: str
    look: str  # the first hint
    also: tuple[str, ...] = ()  # first actions that do the same here
    more_samples: int = 1  # in a step of the mended run, as a multiple

    @property
    def key(self) -> str:
        """Of the question about it: "case1"."""
        return f"case{self.number}"

    def right(self, pick: Any) -> tuple[bool, bool, bool]:
        """Which of the three words are right."""
        cause, action, counter = tuple(pick)
        return cause == self.cause, action in (self.action, *self.also), counter in self.excluded_by


CASES: tuple[Case, ...] = (
    Case(
        number=1,
        called="photos_small",
        cause="no_workers",
        action="start workers",
        rival="host_python",
        rival_file="case03",
        excluded_by=("loader", "python"),
        look="Which part of the ledger is the largest, and who works in it?",
        because="Four fifths of a step pass inside the DataLoader, and no worker was started. Python code of the loop "
        "would show as python, not as loader.",
    ),
    Case(
        number=2,
        called="ranker_large",
        cause="host_syncs",
        action="fetch later",
        rival="pageable_copies",
        rival_file="case07",
        excluded_by=("to_host", "to_gpu"),
        look="Copies take two thirds of a step. Which way do they go?",
        because="64 MiB a step come back from the GPU, and nothing goes there: results are fetched in every step. "
        "Batches that are copied slowly go the other way.",
    ),
    Case(
        number=3,
        called="slow_dataloader",
        cause="host_python",
        action="move the code",
        rival="no_workers",
        rival_file="case01",
        excluded_by=("loader", "python"),
        look="Do not believe the name: how long is the loop inside the DataLoader?",
        because="The DataLoader takes one part in a hundred. The time goes to Python code between its batch and the "
        "model, which workers of the DataLoader never run, however many they are.",
    ),
    Case(
        number=4,
        called="dense_full",
        cause="no_tf32",
        action="tensor cores",
        rival="device_bound",
        rival_file="case11",
        excluded_by=("tensor_cores",),
        look="The GPU is never idle. Is it doing its work the fast way?",
        because="Every matrix product is in float32 and none runs on tensor cores. A device that does what it can "
        "reads near 100 % there; utilisation reads the same in both.",
    ),
    Case(
        number=5,
        called="deep_and_narrow",
        cause="dispatch_bound",
        action="fewer calls",
        rival="small_batch",
        rival_file="case09",
        excluded_by=("calls", "busy"),
        look="What does the host do while the GPU is idle?",
        also=("larger batch",),
        more_samples=2**18,
        because="Both have kernels too small for the GPU. Here it waits for the calls, three quarters of a step; with "
        "small_batch it has its work in time, and the work is small. More rows in each call are fewer calls for the "
        "same work, so a larger batch counts as well.",
    ),
    Case(
        number=6,
        called="documents",
        cause="cpu_bound_loading",
        action="cheaper items",
        rival="too_few_workers",
        rival_file="worked_example",
        excluded_by=("worker_cpu",),
        look="The loop waits for batches although there are workers. What do the workers do meanwhile?",
        because="Each worker keeps most of a core busy, and there are two cores: a third worker would share them. "
        "Workers that are merely too few wait instead, and use a few percent of a core.",
    ),
    Case(
        number=7,
        called="gpu_too_slow",
        cause="pageable_copies",
        action="pin memory",
        rival="host_syncs",
        rival_file="case02",
        excluded_by=("to_gpu", "to_host"),
        look="Do not believe the name: how much of a step does the GPU compute at all?",
        because="256 MiB a step go to the GPU from memory that is not pinned, and nothing comes back. The GPU computes "
        "a sixth of a step: a faster one would shorten that sixth.",
    ),
    Case(
        number=8,
        called="mlp_adamw",
        cause="unfused_optimizer",
        action="fused optimizer",
        rival="dispatch_bound",
        rival_file="case05",
        excluded_by=("optimizer", "calls", "busy"),
        look="The device is busy. With which phase of a step?",
        because="Half of a step goes to the optimizer, tensor by tensor. Were calling operators the limit "
        "everywhere, the device would idle in forward and backward as well: calls would be large, and busy small.",
    ),
    Case(
        number=9,
        called="sequences",
        cause="small_batch",
        action="larger batch",
        rival="device_bound",
        rival_file="case11",
        excluded_by=("filled",),
        look="The GPU is busy. How much of it?",
        more_samples=128,
        because="A kernel runs nearly always, and a third of the multiprocessors have work. A GPU at its limit is "
        "filled.",
    ),
    Case(
        number=10,
        called="long_run",
        cause="memory_growth",
        action="keep numbers",
        rival="unfused_optimizer",
        rival_file="case08",
        excluded_by=("growth", "optimizer"),
        look="A step is fine. What is different from one step to the next?",
        because="Memory grows by more than a MiB in every step, so the job ends when it is full, whatever a step "
        "takes. In case 8, as busy on the same CPU, it does not grow.",
    ),
    Case(
        number=11,
        called="bottleneck_hunt",
        cause="device_bound",
        action="leave it",
        rival="no_tf32",
        rival_file="case04",
        excluded_by=("tensor_cores",),
        look="Is any counter out of order?",
        because="Busy, filled, on tensor cores, nothing copied, nothing waited for. With the tensor cores unused it "
        "would be as busy, and several times slower: that is case 4, of which this is the mended twin.",
    ),
    Case(
        number=12,
        called="attention_study",
        cause="unfused_elementwise",
        action="one operator",
        rival="no_tf32",
        rival_file="case04",
        excluded_by=("matrix", "tensor_cores"),
        look="The GPU is never idle. Which kernels keep it busy?",
        because="Most kernel time is not in matrix kernels: what is computed once is written and read again and "
        "again. With the wrong number format, as in case 4, nearly all of it would be matrix kernels.",
    ),
)
