"""What a recording that did not end would leave behind."""

from __future__ import annotations

import gc
import threading

from gpulab.capture import active_session


def hooks_and_threads():
    """Everything that a recording adds to the process while it runs."""
    from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    return {
        "recorder": active_session._active,
        "optimizers": [*_global_optimizer_pre_hooks.values(), *_global_optimizer_post_hooks.values()],
        "DataLoader": _BaseDataLoaderIter.__next__,
        "garbage collection": list(gc.callbacks),
        "threads": {thread.name for thread in threading.enumerate() if "gpulab" in thread.name},
    }
