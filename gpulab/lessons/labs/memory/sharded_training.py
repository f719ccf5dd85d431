"""Train on two CPU ranks with DistributedDataParallel, ZeRO-1 or FSDP, and count the bytes that each rank stores."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpulab.errors import GpulabError

RANKS = 2
STRATEGIES = ("DDP", "ZeRO-1", "FSDP")
_WIDTH, _STEPS = 512, 3


@dataclass(frozen=True, kw_only=True)
class StoredBytes:
    """What one rank stores for training, between two steps."""

    parameters: int
    gradients: int
    optimizer: int
    loss: float  # of the last step, on this rank

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer


def stored_by_strategy() -> dict[str, list[StoredBytes]]:
    """Train three steps with each strategy on two gloo ranks; return what each rank stores. Takes some seconds.

    Raises GpulabError if PyTorch has no gloo here.
    """
    import torch.distributed as dist
    from torch.multiprocessing.spawn import spawn

    if not dist.is_available() or not dist.is_gloo_available():
        raise GpulabError(
            "Two ranks cannot be started here.",
            why="this PyTorch was built without gloo",
            fix="run this experiment on Linux or macOS",
        )
    with tempfile.TemporaryDirectory() as folder:
        spawn(_train_rank, args=(folder,), nprocs=RANKS)
        texts = [(Path(folder) / f"{rank}.json").read_text() for rank in range(RANKS)]
    ranks = [json.loads(text) for text in texts]
    return {name: [StoredBytes(**rank[name]) for rank in ranks] for name in STRATEGIES}


def weight_count() -> int:
    """Return the number of parameters of the model that is trained."""
    import torch

    with torch.device("meta"):
        return sum(each.numel() for each in _model().parameters())


def _model() -> Any:
    from torch import nn

    hidden = [module for _ in range(4) for module in (nn.Linear(_WIDTH, _WIDTH), nn.GELU())]
    return nn.Sequential(*hidden, nn.Linear(_WIDTH, 8))


def _train_rank(rank: int, folder: str) -> None:
    import warnings
    from dataclasses import asdict

    import torch
    import torch.distributed as dist

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    stored = {name: asdict(_stored_after_training(name)) for name in STRATEGIES}
    (Path(folder) / f"{rank}.json").write_text(json.dumps(stored))
    dist.barrier()
    dist.destroy_process_group()


def _stored_after_training(strategy: str) -> StoredBytes:
    import torch

    torch.manual_seed(0)
    model, optimizer = _prepared(strategy)
    batch = torch.randn(32, _WIDTH)
    for _ in range(_STEPS):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    state = (optimizer.optim if strategy == "ZeRO-1" else optimizer).state
    moments = [
        value for values in state.values() for value in values.values() if torch.is_tensor(value) and value.dim()
    ]
    return StoredBytes(
        parameters=_local_bytes(model.parameters()),
        gradients=_local_bytes(each.grad for each in model.parameters() if each.grad is not None),
        optimizer=_local_bytes(moments),
        loss=float(loss.detach()),
    )


def _prepared(strategy: str) -> tuple[Any, Any]:
    import torch
    from torch import nn

    model = _model()
    if strategy == "FSDP":
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        model = fully_shard(model)
        return model, torch.optim.Adam(model.parameters())
    replicated = nn.parallel.DistributedDataParallel(model)
    if strategy == "ZeRO-1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return replicated, ZeroRedundancyOptimizer(replicated.parameters(), torch.optim.Adam)
    return replicated, torch.optim.Adam(replicated.parameters())


def _local_bytes(tensors: Any) -> int:
    """Return the bytes of tensors, or of the part of sharded tensors that this rank has."""
    local = [each.to_local() if hasattr(each, "to_local") else each for each in tensors]
    return sum(each.numel() * each.element_size() for each in local)
