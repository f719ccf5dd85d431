"""Small real training loops, each with one planted fault, and their fixed twins.

They show tests and learners what a diagnosis should find: each names the rule that should rank first. The loops are
ordinary PyTorch without any gpulab calls, and importable, as DataLoader workers require.

    images      JPEG files decoded by the main process          no_workers
    waiting     items from slow storage, no worker or one       no_workers, too_few_workers
    counting    word counts in pure Python, few cores           no_workers; cpu_bound_loading with two workers
    reading     large scans, read from disk for every batch     slow_storage
    starting    short epochs, eight workers started for each    too_many_workers
    threads     four times as many threads as cores             cpu_oversubscription
    audio       preprocessing in the loop's own Python code     host_python
    metrics     statistics counted in a Python thread           gil_contention
    garbage     gc.collect() in the loop; many small objects    garbage_collection
    labels      waits for responses of a service                unexplained_idle
    checkpoints synchronous checkpoints                         periodic_stalls
    lengths     a compiled model, a new length in each step     recompilation
    tiny_ops    a deep, narrow model at batch size 1            dispatch_bound
    transfers   copies between host and GPU in each step        pageable_copies, unoverlapped_copies, host_syncs,
                                                                cpu_tensor_creation, model_on_cpu; all need a GPU
    attention   attention with its formula written out          unfused_elementwise (on a GPU)
    by_hand     GELU and normalisation in elementary steps      unfused_elementwise
    parameters  many parameters, updated one by one             unfused_optimizer
    products    large products in float32, TF32, odd sizes      no_tf32, no_mixed_precision, misaligned_shapes (GPU)
    layouts     channels-first images                           layout_conversions (on a GPU)
    recurrent   few sequences per batch                         small_batch (on a GPU)
    memory      retained autograd graphs, a batch too large     memory_growth, out_of_memory (simulated);
                an emptied cache, fragmented features           allocator_thrash, fragmentation (on a GPU)
    matmul      large matrix products, no fault                 device_bound

`WORKLOADS` lists all; `workload(name)` returns one.
"""

from __future__ import annotations

from gpulab.errors import GpulabError
from gpulab.wording import did_you_mean
from gpulab.workloads.copies.transfers import TRANSFERS
from gpulab.workloads.data.audio import AUDIO
from gpulab.workloads.data.images import IMAGES
from gpulab.workloads.data.label_service import LABELS
from gpulab.workloads.data.short_epochs import SHORT_EPOCHS
from gpulab.workloads.data.slow_disk import SLOW_DISK
from gpulab.workloads.data.slow_items import SLOW_ITEMS
from gpulab.workloads.data.word_pairs import WORD_PAIRS
from gpulab.workloads.host.cpu_threads import THREADS
from gpulab.workloads.host.garbage import GARBAGE
from gpulab.workloads.host.metrics_thread import METRICS
from gpulab.workloads.host.tiny_ops import TINY_OPS
from gpulab.workloads.host.varying_lengths import LENGTHS
from gpulab.workloads.kernels.attention import ATTENTION
from gpulab.workloads.kernels.channels_last import LAYOUTS
from gpulab.workloads.kernels.handwritten_layers import BY_HAND
from gpulab.workloads.kernels.many_parameters import PARAMETERS
from gpulab.workloads.kernels.matmul import MATMUL
from gpulab.workloads.kernels.precision import PRODUCTS
from gpulab.workloads.kernels.recurrent import RECURRENT
from gpulab.workloads.memory.leaks_and_oom import MEMORY
from gpulab.workloads.steps.checkpoints import CHECKPOINTS
from gpulab.workloads.workload import Workload

__all__ = ["WORKLOADS", "Workload", "workload"]

WORKLOADS: tuple[Workload, ...] = (
    *IMAGES,
    *SLOW_ITEMS,
    *WORD_PAIRS,
    *SLOW_DISK,
    *SHORT_EPOCHS,
    *THREADS,
    *AUDIO,
    *METRICS,
    *GARBAGE,
    *LABELS,
    *CHECKPOINTS,
    *LENGTHS,
    *TINY_OPS,
    *TRANSFERS,
    *ATTENTION,
    *BY_HAND,
    *PARAMETERS,
    *PRODUCTS,
    *LAYOUTS,
    *RECURRENT,
    *MEMORY,
    *MATMUL,
)


def workload(name: str) -> Workload:
    """Return the workload with this name. Raises GpulabError if there is none."""
    for candidate in WORKLOADS:
        if candidate.name == name:
            return candidate
    raise GpulabError(
        f"There is no workload {name!r}.",
        why=f"the workloads are {', '.join(each.name for each in WORKLOADS)}",
        fix=did_you_mean(name, (each.name for each in WORKLOADS)) or "use one of these names",
    )
