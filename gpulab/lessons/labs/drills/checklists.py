"""What a checklist advises for a case: the first open item of PyTorch's tuning guide, and whether it is right."""

from __future__ import annotations

from collections.abc import Mapping

from gpulab.lessons.labs.drills import drills
from gpulab.lessons.labs.drills.cases import DrillCase
from gpulab.lessons.labs.steps import tuning_guide

# The first actions that each item of the guide amounts to.
ITEM_ACTIONS: Mapping[str, tuple[str, ...]] = {
    "DataLoader workers": ("start workers",),
    "pinned memory": ("pin memory",),
    "torch.compile": ("fewer calls", "one operator"),
    "channels_last": ("channels last",),
    "tensor cores": ("tensor cores",),
    "CUDA graphs": ("fewer calls",),
    "no synchronisation": ("fetch later",),
    "tensors created on the GPU": (),
}


def items_of_case(number: int) -> tuple[str, ...]:
    """Return the items of the tuning guide that the run of a case leaves open, in the order of the guide."""
    return tuning_guide.open_items(drills.case(number))


def is_right(item: str | None, case: DrillCase) -> bool:
    """Return whether an item of the guide is a right first action for a case. None: leave the run as it is."""
    actions = ITEM_ACTIONS.get(item, ()) if item is not None else ("leave it",)
    return bool({case.action, *case.other_actions} & {*actions})
