"""Every rewrite, in the order in which they are made, whatever order they are asked in.

What changes the work comes first, then what changes how it is done, then who waits for whom, then what feeds it.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpulab.replay.rewrite import Rewrite
from gpulab.replay.rewrites.floors import FLOORS

REWRITES: tuple[Rewrite, ...] = (*FLOORS,)
BY_NAME: Mapping[str, Rewrite] = {rewrite.name: rewrite for rewrite in REWRITES}
