"""How a run is spread over GPUs, as far as its trace tells, and the code that spreads it better."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.rules.engine.evidence import Evidence
from gpulab.run import Loader


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """What spreads the work, by the names in the trace."""

    kind: str  # the kind of collective that matters most
    ddp: bool
    fsdp: int  # 0: none, 1: FullyShardedDataParallel, 2: fully_shard
    training: bool  # an optimizer ran
    small_by_nature: bool  # batch normalisation is synchronised


def parallel(evidence: Evidence, kind: str) -> Parallel:
    """How this run is spread over GPUs."""
    words = evidence.run.event_rows.words("name").vocabulary
    old = any(word.startswith("FullyShardedDataParallel") for word in words)
    new = any(word.startswith("FSDP::") for word in words)
    return Parallel(
        kind=kind,
        ddp=any("DistributedDataParallel" in word or "distributed.ddp.reducer" in word for word in words),
        fsdp=1 if old else 2 if new else 0,
        training=evidence.trains,
        small_by_nature=any("SyncBatchNorm" in word for word in words),
    )


def overlapped(evidence: Evidence, how: Parallel, *, half_bytes: bool, bucket_mb: int | None) -> tuple[str, str]:
    """Code that hides or spares communication, and what to do beside it."""
    if how.kind == "all-to-all":
        return _started_early(), (
            "What is computed between the start and the result hides the exchange. Fewer, larger exchanges cost "
            "less than many small ones."
        )
    if how.fsdp == 1:
        return _prefetching_wrapper(
            evidence
        ), "Where memory allows, ShardingStrategy.SHARD_GRAD_OP gathers once a step."
    if how.fsdp == 2 or how.kind in ("all-gather", "reduce-scatter"):
        return _prefetching(evidence), (
            "Where memory allows, fully_shard(..., reshard_after_forward=False) gathers once a step instead of twice."
        )
    if how.ddp or how.training:
        code = rewrapped(evidence, bucket_mb=bucket_mb, ddp=how.ddp, lean=True)
        return code + (_half_bytes(evidence) if half_bytes else ""), (
            f"Communicate less often: with {evidence.names.model}.no_sync() around all but every fourth backward pass "
            "(gradient accumulation), or a larger batch for each GPU. static_graph is for models that use the same "
            "parameters in every step."
        )
    return "", "A larger batch for each GPU, or fewer GPUs for one model, gives compute a larger share of each step."


def rewrapped(evidence: Evidence, *, bucket_mb: int | None, ddp: bool, lean: bool = False) -> str:
    """The line that wraps the model in DDP, with better arguments."""
    model = evidence.names.model
    arguments = ["device_ids=[torch.cuda.current_device()]", "gradient_as_bucket_view=True"]
    arguments += [f"bucket_cap_mb={bucket_mb}"] if bucket_mb is not None else []
    arguments += ["static_graph=True"] if lean else []
    where = "in place of the line that wraps the model now" if ddp else "instead of all_reduce for each parameter"
    return (
        "import torch\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n\n"
        f'{model} = getattr({model}, "module", {model})  # {where}\n'
        f"{model} = DDP({model}, {', '.join(arguments)})"
    )


def _half_bytes(evidence: Evidence) -> str:
    return (
        "\n\nfrom torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n\n"
        f"{evidence.names.model}.register_comm_hook(None, default_hooks.bf16_compress_hook)  # half the bytes"
    )


def _prefetching(evidence: Evidence) -> str:
    model = evidence.names.model
    return (
        "from torch.distributed.fsdp import FSDPModule\n\n"
        f"layers = [each for each in {model}.modules() if isinstance(each, FSDPModule) and each is not {model}]\n"
        "for layer, following in zip(layers, layers[1:]):\n"
        "    layer.set_modules_to_forward_prefetch([following])   # gathered while this one computes\n"
        "    following.set_modules_to_backward_prefetch([layer])"
    )


def _prefetching_wrapper(evidence: Evidence) -> str:
    model = evidence.names.model
    return (
        "from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP\n\n"
        f"for layer in FSDP.fsdp_modules({model}):\n"
        "    layer.forward_prefetch = True                        # the next one is gathered while this one computes\n"
        "    layer.backward_prefetch = BackwardPrefetch.BACKWARD_PRE"
    )


def _started_early() -> str:
    return (
        "import torch\n\n\n"
        "def exchange(sent):\n"
        '    """Start the exchange; call what this gives where the values are needed, and compute in between."""\n'
        "    received = torch.empty_like(sent)\n"
        "    work = torch.distributed.all_to_all_single(received, sent, async_op=True)\n\n"
        "    def result():\n"
        "        work.wait()\n"
        "        return received\n\n"
        "    return result"
    )


def spread_over(evidence: Evidence, gpus: int, *, from_one: bool) -> str:
    """A training script's beginning for one process a GPU; `from_one`: now one process feeds them all."""
    names, loader = evidence.names, next(iter(evidence.run.loaders), Loader())
    batch = loader.batch_size
    each = f"batch_size={max(1, batch // gpus) if batch and from_one else batch or f'{names.loader}.batch_size'}, "
    workers = f", num_workers={loader.workers}" if loader.workers else ""
    return (
        f"# Save the training as train.py; start it with: torchrun --nproc-per-node={gpus} train.py\n"
        "import os\n\n"
        "import torch\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "from torch.utils.data import DataLoader, DistributedSampler\n\n"
        'torch.distributed.init_process_group("nccl")\n'
        'gpu = int(os.environ["LOCAL_RANK"])\n'
        "torch.cuda.set_device(gpu)\n"
        f'{names.model} = getattr({names.model}, "module", {names.model}).to(gpu)\n'
        f"{names.model} = DDP({names.model}, device_ids=[gpu])\n"
        f"sampler = DistributedSampler({names.dataset})  # each process gets its own part; sampler.set_epoch(epoch)\n"
        f"{names.loader} = DataLoader({names.dataset}, {each}sampler=sampler{workers}, pin_memory=True)"
    )
