"""How a run is distributed over GPUs, by its trace, and code that distributes it better."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.analysis.ranks.collectives import SEND_RECEIVE
from gpulab.analysis.ranks.parallel_axis import CONTEXT, PIPELINE, TENSOR
from gpulab.rules.engine.evidence import Evidence
from gpulab.run import Loader

# Where results of one layer are exchanged before the next one starts, no argument of a wrapper helps.
_ADVICE_BY_AXIS = {
    TENSOR: "The exchanges of tensor-parallel layers lie between the layers. Keep each tensor-parallel group inside "
    "one machine (NVLink), and use as few ranks per group as memory allows. Sequence parallelism splits each "
    "all-reduce into a reduce-scatter and an all-gather, which asynchronous tensor parallelism overlaps with the "
    "matrix products.",
    PIPELINE: "If these are the stages of a pipeline, use more micro-batches or an interleaved schedule; if it is ring "
    "attention, send the next block while the current one is computed.",
    CONTEXT: "Ring attention can send the next block of keys and values while the current one is computed; longer "
    "sequences per rank give it more to overlap with.",
}


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How the work is distributed, by the names in the trace."""

    kind: str  # the collective with the longest exposed time
    axis: str  # what it is for, as in analysis.ranks.parallel_axis; "" if unknown
    ddp: bool
    fsdp: int  # 0: none, 1: FullyShardedDataParallel, 2: fully_shard
    is_training: bool  # an optimizer ran
    uses_sync_batch_norm: bool  # uses synchronised batch normalisation, whose all-reduces are small


def find_parallelism(evidence: Evidence, kind: str, axis: str = "") -> Parallelism:
    """Return how this run is distributed over GPUs. `axis`: what the collectives of this kind are for, if known."""
    event_names = evidence.run.event_rows.text("name").vocabulary
    fsdp1 = any(name.startswith("FullyShardedDataParallel") for name in event_names)
    fsdp2 = any(name.startswith("FSDP::") for name in event_names)
    return Parallelism(
        kind=kind,
        axis=axis,
        ddp=any("DistributedDataParallel" in name or "distributed.ddp.reducer" in name for name in event_names),
        fsdp=1 if fsdp1 else 2 if fsdp2 else 0,
        is_training=evidence.is_training,
        uses_sync_batch_norm=any("SyncBatchNorm" in name for name in event_names),
    )


def overlap_code(
    evidence: Evidence, parallelism: Parallelism, *, half_bytes: bool, bucket_mb: int | None
) -> tuple[str, str]:
    """Return code that overlaps or avoids communication, and advice."""
    if parallelism.axis in _ADVICE_BY_AXIS:
        return "", _ADVICE_BY_AXIS[parallelism.axis]
    if parallelism.kind == SEND_RECEIVE:
        return "", _ADVICE_BY_AXIS[PIPELINE]
    if parallelism.kind == "all-to-all":
        return _async_exchange_code(), (
            "Compute between the start and the result overlaps with the exchange. Fewer, larger exchanges cost less "
            "than many small ones."
        )
    if parallelism.fsdp == 1:
        return _fsdp1_prefetch_code(evidence), "If memory allows, ShardingStrategy.SHARD_GRAD_OP gathers once per step."
    if parallelism.fsdp == 2 or parallelism.kind in ("all-gather", "reduce-scatter"):
        return _fsdp2_prefetch_code(evidence), (
            "If memory allows, fully_shard(..., reshard_after_forward=False) gathers once per step instead of twice."
        )
    if parallelism.ddp or parallelism.is_training:
        code = ddp_code(evidence, bucket_mb=bucket_mb, ddp=parallelism.ddp, static_graph=True)
        return code + (_bf16_compression_code(evidence) if half_bytes and evidence.on_gpu else ""), (
            f"Communicate less often: with {evidence.names.model}.no_sync() around all but every fourth backward pass "
            f"(gradient accumulation), or use a larger batch per {'GPU' if evidence.on_gpu else 'rank'}. static_graph "
            "is for models that use the same parameters in every step."
        )
    return "", "A larger batch per GPU, or fewer GPUs per model, gives compute a larger share of each step."


def ddp_code(evidence: Evidence, *, bucket_mb: int | None, ddp: bool, static_graph: bool = False) -> str:
    """Return code that wraps the model in DDP with better arguments."""
    model = evidence.names.model
    arguments = ["device_ids=[torch.cuda.current_device()]"] if evidence.on_gpu else []
    arguments += ["gradient_as_bucket_view=True"]
    arguments += [f"bucket_cap_mb={bucket_mb}"] if bucket_mb is not None else []
    arguments += ["static_graph=True"] if static_graph else []
    comment = "replaces the line that wraps the model now" if ddp else "replaces all_reduce for each parameter"
    return (
        f"{'import torch' + chr(10) if evidence.on_gpu else ''}"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n\n"
        f'{model} = getattr({model}, "module", {model})  # {comment}\n'
        f"{model} = DDP({model}, {', '.join(arguments)})"
    )


def _bf16_compression_code(evidence: Evidence) -> str:
    return (
        "\n\nfrom torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n\n"
        f"{evidence.names.model}.register_comm_hook(None, default_hooks.bf16_compress_hook)  # half the bytes"
    )


def _fsdp2_prefetch_code(evidence: Evidence) -> str:
    model = evidence.names.model
    return (
        "from torch.distributed.fsdp import FSDPModule\n\n"
        f"layers = [module for module in {model}.modules() if isinstance(module, FSDPModule) and module is not "
        f"{model}]\n"
        "for layer, next_layer in zip(layers, layers[1:]):\n"
        "    layer.set_modules_to_forward_prefetch([next_layer])   # gathered while this layer computes\n"
        "    next_layer.set_modules_to_backward_prefetch([layer])"
    )


def _fsdp1_prefetch_code(evidence: Evidence) -> str:
    model = evidence.names.model
    return (
        "from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP\n\n"
        f"for layer in FSDP.fsdp_modules({model}):\n"
        "    layer.forward_prefetch = True                        # gathers the next layer while this one computes\n"
        "    layer.backward_prefetch = BackwardPrefetch.BACKWARD_PRE"
    )


def _async_exchange_code() -> str:
    return (
        "import torch\n\n\n"
        "def exchange(inputs):\n"
        '    """Starts the exchange and returns a function that waits for the result; compute in between."""\n'
        "    outputs = torch.empty_like(inputs)\n"
        "    work = torch.distributed.all_to_all_single(outputs, inputs, async_op=True)\n\n"
        "    def result():\n"
        "        work.wait()\n"
        "        return outputs\n\n"
        "    return result"
    )


def ddp_script(evidence: Evidence, gpus: int, *, from_one: bool) -> str:
    """Return the start of a training script with one process per GPU. `from_one`: one process drives all GPUs now."""
    names, loader = evidence.names, next(iter(evidence.run.loaders), Loader())
    batch = loader.batch_size
    batch_argument = (
        f"batch_size={max(1, batch // gpus) if batch and from_one else batch or f'{names.loader}.batch_size'}, "
    )
    workers = f", num_workers={loader.workers}" if loader.workers else ""
    return (
        f"# Save the training loop as train.py and start it with: torchrun --nproc-per-node={gpus} train.py\n"
        "import os\n\n"
        "import torch\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "from torch.utils.data import DataLoader, DistributedSampler\n\n"
        'torch.distributed.init_process_group("nccl")\n'
        'gpu = int(os.environ["LOCAL_RANK"])\n'
        "torch.cuda.set_device(gpu)\n"
        f'{names.model} = getattr({names.model}, "module", {names.model}).to(gpu)\n'
        f"{names.model} = DDP({names.model}, device_ids=[gpu])\n"
        f"sampler = DistributedSampler({names.dataset})  # each process gets its own shard; call "
        "sampler.set_epoch(epoch)\n"
        f"{names.loader} = DataLoader({names.dataset}, {batch_argument}sampler=sampler{workers}, pin_memory=True)"
    )
