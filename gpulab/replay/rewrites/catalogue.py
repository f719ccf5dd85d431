"""All rewrites, in the order in which they are applied, whatever order the user gives them in.

First come changes of the work itself, then of how it is done, then of waits, and last of data loading.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpulab.replay.rewrite import Rewrite
from gpulab.replay.rewrites.copies.pinning_and_prefetch import COPYING
from gpulab.replay.rewrites.data.loading import FEEDING
from gpulab.replay.rewrites.host.cuda_graphs import GRAPHS
from gpulab.replay.rewrites.host.python_and_gc import HOST
from gpulab.replay.rewrites.host.syncs import SYNCING
from gpulab.replay.rewrites.kernels.batch_size import BATCH
from gpulab.replay.rewrites.kernels.channels_last import LAYOUT
from gpulab.replay.rewrites.kernels.compile import FUSION
from gpulab.replay.rewrites.kernels.fused_optimizer import OPTIMIZER
from gpulab.replay.rewrites.kernels.mixed_precision import PRECISION
from gpulab.replay.rewrites.kernels.tf32 import TF32
from gpulab.replay.rewrites.machine.instant import FLOORS
from gpulab.replay.rewrites.machine.other_gpu import HARDWARE
from gpulab.replay.rewrites.ranks.communication import COMMUNICATING
from gpulab.replay.rewrites.steps.async_checkpoint import CHECKPOINTING
from gpulab.replay.rewrites.steps.gradient_accumulation import ACCUMULATING

REWRITES: tuple[Rewrite, ...] = (
    *BATCH,
    *ACCUMULATING,
    *HARDWARE,
    *PRECISION,
    *TF32,
    *LAYOUT,
    *FUSION,
    *OPTIMIZER,
    *COPYING,
    *SYNCING,
    *GRAPHS,
    *COMMUNICATING,
    *CHECKPOINTING,
    *HOST,
    *FEEDING,
    *FLOORS,
)
BY_NAME: Mapping[str, Rewrite] = {rewrite.name: rewrite for rewrite in REWRITES}
