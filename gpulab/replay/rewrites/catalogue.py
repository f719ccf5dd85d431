"""All rewrites, in the order in which they are applied, whatever order the user gives them in.

First come changes of the work itself, then of how it is done, then of waits, and last of data loading.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpulab.replay.rewrite import Rewrite
from gpulab.replay.rewrites.copies.pin_and_prefetch import COPY_REWRITES
from gpulab.replay.rewrites.data.loading import LOADING_REWRITES
from gpulab.replay.rewrites.host.cuda_graphs import CUDA_GRAPH_REWRITES
from gpulab.replay.rewrites.host.python_and_gc import PYTHON_REWRITES
from gpulab.replay.rewrites.host.syncs import SYNC_REWRITES
from gpulab.replay.rewrites.kernels.batch_size import BATCH_REWRITES
from gpulab.replay.rewrites.kernels.channels_last import MEMORY_FORMAT_REWRITES
from gpulab.replay.rewrites.kernels.compile import COMPILE_REWRITES
from gpulab.replay.rewrites.kernels.fused_optimizer import OPTIMIZER_REWRITES
from gpulab.replay.rewrites.kernels.mixed_precision import PRECISION_REWRITES
from gpulab.replay.rewrites.kernels.tf32 import TF32_REWRITES
from gpulab.replay.rewrites.machine.instant import INSTANT_REWRITES
from gpulab.replay.rewrites.machine.other_gpu import GPU_REWRITES
from gpulab.replay.rewrites.ranks.communication import COMMUNICATION_REWRITES
from gpulab.replay.rewrites.steps.async_checkpoint import CHECKPOINT_REWRITES
from gpulab.replay.rewrites.steps.gradient_accumulation import ACCUMULATION_REWRITES

REWRITES: tuple[Rewrite, ...] = (
    *BATCH_REWRITES,
    *ACCUMULATION_REWRITES,
    *GPU_REWRITES,
    *PRECISION_REWRITES,
    *TF32_REWRITES,
    *MEMORY_FORMAT_REWRITES,
    *COMPILE_REWRITES,
    *OPTIMIZER_REWRITES,
    *COPY_REWRITES,
    *SYNC_REWRITES,
    *CUDA_GRAPH_REWRITES,
    *COMMUNICATION_REWRITES,
    *CHECKPOINT_REWRITES,
    *PYTHON_REWRITES,
    *LOADING_REWRITES,
    *INSTANT_REWRITES,
)
BY_NAME: Mapping[str, Rewrite] = {rewrite.name: rewrite for rewrite in REWRITES}
