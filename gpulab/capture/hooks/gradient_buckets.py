"""Sizes of the buckets in which DistributedDataParallel all-reduces gradients: the traces of CPU backends lack them."""

from __future__ import annotations

import weakref
from types import FrameType
from typing import Any

from gpulab.capture.hooks.user_variables import visible_values
from gpulab.run_facts import BUCKETS

_REBUILT_AFTER = 3  # optimizer steps: DDP rebuilds its buckets in the order of the first gradients


class GradientBuckets:
    """Finds the wrapped model at the first optimizer step, and reads the sizes some steps later."""

    def __init__(self) -> None:
        self.sizes: tuple[int, ...] = ()
        self._model: weakref.ref[Any] | None = None
        self._steps = 0

    @property
    def facts(self) -> dict[str, str]:
        """Return the sizes as a fact of the run; {} if they are unknown."""
        return {BUCKETS: ",".join(map(str, self.sizes))} if self.sizes else {}

    def find_model(self, innermost: FrameType | None) -> None:
        """Find the wrapped model among the user's variables, if there is exactly one."""
        from torch.nn.parallel import DistributedDataParallel

        models = {id(value): value for _, value in visible_values(innermost) if type(value) is DistributedDataParallel}
        if len(models) == 1:
            self._model = weakref.ref(next(iter(models.values())))

    def optimizer_stepped(self) -> None:
        """Read the sizes, once, when the buckets have their final order."""
        self._steps += 1
        if self._model is None or self._steps != _REBUILT_AFTER:
            return
        model, self._model = self._model(), None
        if model is not None:
            data = model._get_ddp_logging_data()
            text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
            self.sizes = tuple([int(word) for word in str(text).replace(" ", "").split(",") if word])
