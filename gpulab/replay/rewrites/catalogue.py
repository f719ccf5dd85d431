"""Every rewrite, in the order in which they are made, whatever order they are asked in.

What changes the work comes first, then what changes how it is done, then who waits for whom, then what feeds it.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpulab.replay.rewrite import Rewrite
from gpulab.replay.rewrites.accumulation import ACCUMULATING
from gpulab.replay.rewrites.batch import BATCH
from gpulab.replay.rewrites.checkpoint import CHECKPOINTING
from gpulab.replay.rewrites.communication import COMMUNICATING
from gpulab.replay.rewrites.copies import COPYING
from gpulab.replay.rewrites.feeding import FEEDING
from gpulab.replay.rewrites.floors import FLOORS
from gpulab.replay.rewrites.fusion import FUSION
from gpulab.replay.rewrites.graphs import GRAPHS
from gpulab.replay.rewrites.hardware import HARDWARE
from gpulab.replay.rewrites.host import HOST
from gpulab.replay.rewrites.layout import LAYOUT
from gpulab.replay.rewrites.optimizer import OPTIMIZER
from gpulab.replay.rewrites.precision import PRECISION
from gpulab.replay.rewrites.syncs import SYNCING
from gpulab.replay.rewrites.tf32 import TF32

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
