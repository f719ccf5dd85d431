"""What a process group is for: data, tensor, pipeline, context or expert parallelism, by its description.

Descriptions are those of PyTorch's device meshes ("mesh_tp", with the names that the program gives to the dimensions)
and of Megatron-LM ("TENSOR_MODEL_PARALLEL_GROUP"). Others, such as "default_pg", say nothing.
"""

from __future__ import annotations

import re
from functools import cache

from gpulab.run import Run

DATA, TENSOR, PIPELINE, CONTEXT, EXPERT = "data", "tensor", "pipeline", "context", "expert"
# The first that matches, ignoring case. The groups of Megatron-LM for the data parallelism of experts are of data.
_AXES = {
    DATA: r"\b(dp|ddp|fsdp|hsdp|shard|replicate)\b|data parallel|expert data",
    PIPELINE: r"\b(pp|pipe|pipeline)\b",
    CONTEXT: r"\b(cp|sp|context|sequence)\b",
    EXPERT: r"\b(ep|expert|experts)\b",
    TENSOR: r"\b(tp|tensor)\b",
}
_OF_SCHEDULE = re.compile(r"^(?:Forward (\d+)|PP:\d+F(\d+))$")


@cache
def axis_of(description: str) -> str:
    """Return the axis of a process group with this description; "" if it is unknown."""
    spaced = re.sub(r"[^a-z0-9]+", " ", description.lower())
    return next((axis for axis, pattern in _AXES.items() if re.search(pattern, spaced)), "")


def micro_batches(run: Run) -> int | None:
    """Return the micro-batches per step of a schedule of torch.distributed.pipelining; None if there is none."""
    names = run.event_rows.text("name").vocabulary
    numbers = [int(match[1] or match[2]) for match in map(_OF_SCHEDULE.match, names) if match]
    return max(numbers) + 1 if len(numbers) > 1 else None
