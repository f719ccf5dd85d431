"""The twelve cases of lesson 20: the planted cause, its rival, and the counter that distinguishes the two.

This file contains the answers. To do the drills, look at the runs instead (gpulab.lessons.labs.drills.drills).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CAUSES: Mapping[str, str] = {
    "no_workers": "num_workers=0: the main process loads the data while the model waits",
    "too_few_workers": "DataLoader workers wait for storage, and there are too few of them to wait in parallel",
    "cpu_bound_loading": "loading the items needs more CPU time than the cores have",
    "host_python": "Python code of the loop runs while the device is idle",
    "dispatch_bound": "operator dispatch takes longer than the kernels",
    "host_syncs": "the loop copies results to the host, and so waits for the GPU, in every step",
    "pageable_copies": "batches are copied to the GPU from pageable memory",
    "no_tf32": "float32 matrix products without tensor cores",
    "unfused_elementwise": "separate elementwise kernels read and write the same large tensors",
    "small_batch": "kernels too small to fill the GPU",
    "unfused_optimizer": "the optimizer updates the parameter tensors one by one",
    "memory_growth": "tensors stay referenced, so memory grows in every step",
    "device_bound": "no problem: the device is the limit",
}
ACTIONS: Mapping[str, str] = {
    "start workers": "num_workers=... instead of 0",
    "more workers": "a larger num_workers",
    "cheaper items": "cache each item, or compute it faster",
    "move the code": "out of the loop: vectorise it, or move it into the data set",
    "fewer calls": "torch.compile with CUDA graphs, or more rows per call",
    "fetch later": "keep results on the GPU, and copy them to the host after the loop",
    "pin memory": "pin_memory=True, and copy with non_blocking=True",
    "tensor cores": "TF32, or autocast to bfloat16",
    "one operator": "scaled_dot_product_attention, or torch.compile",
    "larger batch": "more samples per step, as long as samples per second rise",
    "fused optimizer": "fused=True",
    "keep numbers": ".item() or .detach() before a tensor is stored",
    "leave it": "no change: only a faster device would help",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One anonymous run, and its answer."""

    number: int
    called: str  # the owner's name for it, which proves nothing
    cause: str
    action: str
    rival: str  # the cause it is easily mistaken for
    rival_file: str  # a dataset whose run has the rival's cause
    excluded_by: tuple[str, ...]  # counters that distinguish the two, best first
    because: str
    look: str  # the first hint
    also: tuple[str, ...] = ()  # other first actions that work here
    more_samples: int = 1  # samples per step of the fixed run, as a multiple

    @property
    def key(self) -> str:
        """Key of the question: "case1"."""
        return f"case{self.number}"

    def right(self, pick: Any) -> tuple[bool, bool, bool]:
        """Return which of the three words are correct."""
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
        look="Which part of the ledger is the largest, and which process works in it?",
        because="The loop spends four fifths of a step inside the DataLoader, without workers. Python code of the loop "
        "would count as python, not as loader.",
    ),
    Case(
        number=2,
        called="ranker_large",
        cause="host_syncs",
        action="fetch later",
        rival="pageable_copies",
        rival_file="case07",
        excluded_by=("to_host", "to_gpu"),
        look="Copies take two thirds of a step. In which direction?",
        because="64 MiB per step are copied from the GPU, and nothing to it: the loop reads results every step. "
        "Slow copies of batches go in the other direction.",
    ),
    Case(
        number=3,
        called="slow_dataloader",
        cause="host_python",
        action="move the code",
        rival="no_workers",
        rival_file="case01",
        excluded_by=("loader", "python"),
        look="Ignore the name: how long does the loop wait for the DataLoader?",
        because="The DataLoader takes 1 % of a step. The time goes to Python code between DataLoader and model, "
        "which DataLoader workers do not run, however many there are.",
    ),
    Case(
        number=4,
        called="dense_full",
        cause="no_tf32",
        action="tensor cores",
        rival="device_bound",
        rival_file="case11",
        excluded_by=("tensor_cores",),
        look="The GPU is never idle. Does it use its fastest units?",
        because="Every matrix product is in float32, and none runs on tensor cores. A GPU at its limit reads about "
        "100 % there; utilisation is the same in both.",
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
        because="Both have kernels too small for the GPU. Here it waits for launches for three quarters of a step; "
        "with small_batch the launches are in time, but the kernels are small. More rows per call mean fewer calls for "
        "the same work, so a larger batch is correct, too.",
    ),
    Case(
        number=6,
        called="documents",
        cause="cpu_bound_loading",
        action="cheaper items",
        rival="too_few_workers",
        rival_file="worked_example",
        excluded_by=("worker_cpu",),
        look="The loop waits for data although there are workers. What do the workers do?",
        because="Each worker uses most of a core, and there are two cores: a third worker would have to share them. "
        "With too few workers, each of them waits for storage and uses a few percent of a core.",
    ),
    Case(
        number=7,
        called="gpu_too_slow",
        cause="pageable_copies",
        action="pin memory",
        rival="host_syncs",
        rival_file="case02",
        excluded_by=("to_gpu", "to_host"),
        look="Ignore the name: for how much of a step does the GPU compute?",
        because="256 MiB per step are copied to the GPU from pageable memory, and nothing back. The GPU computes for a "
        "sixth of a step: a faster one would shorten only that sixth.",
    ),
    Case(
        number=8,
        called="mlp_adamw",
        cause="unfused_optimizer",
        action="fused optimizer",
        rival="dispatch_bound",
        rival_file="case05",
        excluded_by=("optimizer", "calls", "busy"),
        look="The device is busy. In which phase of a step?",
        because="The optimizer takes half of a step, tensor by tensor. If operator dispatch were the limit everywhere, "
        "the device would be idle in forward and backward, too: calls would be large, and busy small.",
    ),
    Case(
        number=9,
        called="sequences",
        cause="small_batch",
        action="larger batch",
        rival="device_bound",
        rival_file="case11",
        excluded_by=("filled",),
        look="The GPU is busy. How much of it has work?",
        more_samples=128,
        because="A kernel runs nearly always, but only a third of the multiprocessors have work. In a GPU at its limit "
        "nearly all have.",
    ),
    Case(
        number=10,
        called="long_run",
        cause="memory_growth",
        action="keep numbers",
        rival="unfused_optimizer",
        rival_file="case08",
        excluded_by=("growth", "optimizer"),
        look="Each step is fine. What changes from one step to the next?",
        because="Memory grows by more than 1 MiB in every step, so the job fails when memory is full, however fast "
        "it is. In case 8, which is as busy on the same CPU, it does not grow.",
    ),
    Case(
        number=11,
        called="bottleneck_hunt",
        cause="device_bound",
        action="leave it",
        rival="no_tf32",
        rival_file="case04",
        excluded_by=("tensor_cores",),
        look="Does any counter show a problem?",
        because="The GPU is busy and filled, uses tensor cores, and waits for no copies. Without tensor cores it would "
        "be as busy, but several times slower: that is case 4, and this is its fixed version.",
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
        because="Most kernel time is outside matrix kernels: intermediate results are written and read repeatedly. "
        "In float32 without tensor cores, as in case 4, nearly all of it would be matrix kernels.",
    ),
)
