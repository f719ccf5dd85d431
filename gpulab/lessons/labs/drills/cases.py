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
    "leave it": "no single change gains much: the device does the necessary work, near its limits",
}


@dataclass(frozen=True, kw_only=True)
class DrillCase:
    """One anonymous run, and its answer."""

    number: int
    owner_name: str  # the owner's name for it, which proves nothing
    cause: str
    action: str
    rival: str  # the cause it is easily mistaken for
    rival_file: str  # a dataset whose run has the rival's cause
    excluded_by: tuple[str, ...]  # counters that distinguish the two, best first
    explanation: str
    hint: str  # the first hint
    other_actions: tuple[str, ...] = ()  # other first actions that work here
    sample_factor: int = 1  # samples per step of the fixed run, as a multiple
    file: str = ""  # the dataset; "" for case01 to case12

    @property
    def dataset_name(self) -> str:
        """Name of the dataset with the run."""
        return self.file or f"case{self.number:02}"

    @property
    def key(self) -> str:
        """Key of the question: "case1"."""
        return f"case{self.number}"

    def correct_words(self, pick: Any) -> tuple[bool, bool, bool]:
        """Return which of the three words are correct."""
        cause, action, counter = tuple(pick)
        return cause == self.cause, action in (self.action, *self.other_actions), counter in self.excluded_by


CASES: tuple[DrillCase, ...] = (
    DrillCase(
        number=1,
        owner_name="photos_small",
        cause="no_workers",
        action="start workers",
        rival="host_python",
        rival_file="case03",
        excluded_by=("loader", "python"),
        hint="Which part of the ledger is the largest, and which process works in it?",
        explanation="The loop spends four fifths of a step inside the DataLoader, without workers. Python code of the "
        "loop "
        "would count as python, not as loader.",
    ),
    DrillCase(
        number=2,
        owner_name="ranker_large",
        cause="host_syncs",
        action="fetch later",
        rival="pageable_copies",
        rival_file="case07",
        excluded_by=("to_host", "to_gpu"),
        hint="Copies take two thirds of a step. In which direction?",
        explanation="64 MiB per step are copied from the GPU, and nothing to it: the loop reads results every step. "
        "Slow copies of batches go in the other direction.",
    ),
    DrillCase(
        number=3,
        owner_name="slow_dataloader",
        cause="host_python",
        action="move the code",
        rival="no_workers",
        rival_file="case01",
        excluded_by=("loader", "python"),
        hint="Ignore the name: how long does the loop wait for the DataLoader?",
        explanation="The DataLoader takes 1 % of a step. The time goes to Python code between DataLoader and model, "
        "which DataLoader workers do not run, however many there are.",
    ),
    DrillCase(
        number=4,
        owner_name="dense_full",
        cause="no_tf32",
        action="tensor cores",
        rival="device_bound",
        rival_file="case11",
        excluded_by=("tensor_cores",),
        hint="The GPU is never idle. Does it use its fastest units?",
        explanation="Every matrix product is in float32, and none runs on tensor cores. A GPU at its limit reads about "
        "100 % there; utilisation is the same in both.",
    ),
    DrillCase(
        number=5,
        owner_name="deep_and_narrow",
        cause="dispatch_bound",
        action="fewer calls",
        rival="small_batch",
        rival_file="case09",
        excluded_by=("calls", "busy"),
        hint="What does the host do while the GPU is idle?",
        other_actions=("larger batch",),
        sample_factor=2**18,
        explanation="Both have kernels too small for the GPU. Here it waits for launches for three quarters of a step; "
        "with small_batch the launches are in time, but the kernels are small. More rows per call mean fewer calls for "
        "the same work, so a larger batch is correct, too.",
    ),
    DrillCase(
        number=6,
        owner_name="documents",
        cause="cpu_bound_loading",
        action="cheaper items",
        rival="too_few_workers",
        rival_file="worked_example",
        excluded_by=("worker_cpu",),
        hint="The loop waits for data although there are workers. What do the workers do?",
        explanation="Each worker uses most of a core, and there are two cores: a third worker would have to share "
        "them. "
        "With too few workers, each of them waits for storage and uses a few percent of a core.",
    ),
    DrillCase(
        number=7,
        owner_name="gpu_too_slow",
        cause="pageable_copies",
        action="pin memory",
        rival="host_syncs",
        rival_file="case02",
        excluded_by=("to_gpu", "to_host"),
        hint="Ignore the name: for how much of a step does the GPU compute?",
        explanation="256 MiB per step are copied to the GPU from pageable memory, and nothing back. The GPU computes "
        "for a "
        "sixth of a step: a faster one would shorten only that sixth.",
    ),
    DrillCase(
        number=8,
        owner_name="mlp_adamw",
        cause="unfused_optimizer",
        action="fused optimizer",
        rival="dispatch_bound",
        rival_file="case05",
        excluded_by=("optimizer", "calls", "busy"),
        hint="The device is busy. In which phase of a step?",
        explanation="The optimizer takes half of a step, tensor by tensor. If operator dispatch were the limit "
        "everywhere, "
        "the device would be idle in forward and backward, too: calls would be large, and busy small.",
    ),
    DrillCase(
        number=9,
        owner_name="sequences",
        cause="small_batch",
        action="larger batch",
        rival="device_bound",
        rival_file="case11",
        excluded_by=("filled",),
        hint="The GPU is busy. How much of it has work?",
        sample_factor=128,
        explanation="A kernel runs nearly always, but on average a third of the multiprocessors have work. In a GPU at "
        "its limit nearly all have.",
    ),
    DrillCase(
        number=10,
        owner_name="long_run",
        cause="memory_growth",
        action="keep numbers",
        rival="unfused_optimizer",
        rival_file="case08",
        excluded_by=("growth", "optimizer"),
        hint="Each step is fine. What changes from one step to the next?",
        explanation="Memory grows by more than 1 MiB in every step, so the job fails when memory is full, however fast "
        "it is. In case 8, which is as busy on the same CPU, it does not grow.",
    ),
    DrillCase(
        number=11,
        owner_name="bottleneck_hunt",
        cause="device_bound",
        action="leave it",
        rival="no_tf32",
        rival_file="case04",
        excluded_by=("tensor_cores",),
        hint="Does any counter show a problem?",
        explanation="The GPU is busy and filled, uses tensor cores, and waits for no copies. Without tensor cores it "
        "would "
        "be as busy, but several times slower: that is case 4, and this is its fixed version.",
    ),
    DrillCase(
        number=12,
        owner_name="attention_study",
        cause="unfused_elementwise",
        action="one operator",
        rival="no_tf32",
        rival_file="case04",
        excluded_by=("matrix", "tensor_cores"),
        hint="The GPU is never idle. Which kernels keep it busy?",
        explanation="Most kernel time is outside matrix kernels: intermediate results are written and read repeatedly. "
        "In float32 without tensor cores, as in case 4, nearly all of it would be matrix kernels.",
    ),
)

# Words for the recordings of a real GPU, beside those above.
MORE_CAUSES: Mapping[str, str] = {
    "layout_conversions": "kernels convert between NCHW and NHWC around convolutions",
    "allocator_thrash": "memory is returned to the driver and allocated again in every step",
    "slow_storage": "DataLoader workers wait for reads from storage",
}
MORE_ACTIONS: Mapping[str, str] = {
    "channels last": "memory_format=torch.channels_last for model and batch",
    "keep the cache": "no torch.cuda.empty_cache() in the loop",
    "fewer bytes": "a smaller file format, or the data in memory or on a faster disk",
}
RECORDED_CASES: tuple[DrillCase, ...] = (
    DrillCase(
        number=13,
        file="h100_04",
        owner_name="vision_bf16",
        cause="layout_conversions",
        action="channels last",
        rival="unfused_elementwise",
        rival_file="h100_07",
        excluded_by=("layout",),
        hint="Matrix kernels take a fifth of the kernel time. Read the names of the others.",
        explanation="nchwToNhwc and nhwcToNchw kernels reorder the images before and after convolutions. Fusing "
        "elementwise operators would not remove them; in a run whose cause is unfused operators, there are none.",
    ),
    DrillCase(
        number=14,
        file="h100_06",
        owner_name="memory_safe",
        cause="allocator_thrash",
        action="keep the cache",
        rival="dispatch_bound",
        rival_file="h100_13",
        excluded_by=("alloc",),
        hint="The GPU is idle for half of the time. Does the host only launch kernels meanwhile?",
        explanation="alloc reads 13 % over all steps (6 % of a typical one): the GPU is idle while cudaMalloc and "
        "cudaFree run. A loop that is only slow at launching calls neither. The loop called torch.cuda.empty_cache() "
        "to save memory. Launches take time here, too: they are the next thing to look at.",
    ),
    DrillCase(
        number=15,
        file="h100_12",
        owner_name="scans",
        cause="slow_storage",
        action="fewer bytes",
        rival="cpu_bound_loading",
        rival_file="case06",
        excluded_by=("blocked", "worker_cpu"),
        hint="The loop waits for data although there are workers. What do the workers wait for?",
        other_actions=("more workers",),
        explanation="The workers wait for a read in two thirds of the samples, and use a third of a core. Workers that "
        "compute would not wait. More workers help too, until the disk is saturated; fewer bytes always help.",
    ),
    DrillCase(
        number=16,
        file="h100_14",
        owner_name="why_so_slow",
        cause="device_bound",
        action="leave it",
        rival="pageable_copies",
        rival_file="h100_01",
        excluded_by=("copies", "to_gpu", "busy"),
        hint="Batches are copied to the GPU in every step. Does the GPU wait for them?",
        explanation="Copies take 1 % of a step without computation: they run during the previous step. With pageable "
        "copies, they would take most of the step. The GPU is busy, filled, and uses tensor cores.",
    ),
)
ALL_CASES: tuple[DrillCase, ...] = (*CASES, *RECORDED_CASES)
