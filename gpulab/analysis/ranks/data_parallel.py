"""Several GPUs in one process: how busy each GPU was, and the cost of nn.DataParallel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.copies.copy_table import copy_direction
from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger, main_device
from gpulab.intervals import Spans, intersect, subtract, union_of
from gpulab.run import Run
from gpulab.tables import EventKind

Shares = tuple[tuple[int, float], ...]  # GPU index and busy share of the time
# Operators of torch.nn.parallel that replicate the model, and scatter and gather data, in forward and backward.
_PARALLEL_OPS = ("Broadcast", "Scatter", "Gather", "ReduceAddCoalesced", "comm::", "aten::_broadcast_coalesced")


def gpu_busy_shares(run: Run, steps: Steps, ledger: Ledger) -> Shares:
    """Return the GPUs that worked in this run and their busy share of the interior steps."""
    window = steps.interior_spans
    if ledger.device != "gpu":
        return ()
    devices = np.unique(run.event_rows["device"][run.event_rows["kind"] >= EventKind.KERNEL.value]).tolist()
    return tuple(
        (device, intersect(device_work(run, device).spans(), window).total_ns / max(1, window.total_ns))
        for device in devices
        if device >= 0
    )


@dataclass(frozen=True, kw_only=True)
class DataParallelCost:
    """Cost of DataParallel per interior step."""

    gpus: int
    exposed_ns: int  # replication, scatter and gather not overlapped by kernels on the busiest GPU
    shares: Shares
    spans: Spans


def data_parallel_cost(run: Run, steps: Steps, ledger: Ledger) -> DataParallelCost | None:
    """Compute the cost of DataParallel; None if it is not used, or uses only one GPU."""
    events = run.event_rows
    if "DataParallel.forward" not in events.text("name").vocabulary:
        return None
    shares = gpu_busy_shares(run, steps, ledger)
    if sum(share > 0 for _, share in shares) < 2:
        return None
    parallel_ops = events.select(events.matching(lambda word: word.startswith(_PARALLEL_OPS)))
    work = device_work(run, main_device(run))
    peer_copies = work.select(_is_peer_copy(run)[work["name"]] & work.kind_mask(EventKind.MEMCPY))
    parallel_time = union_of(
        parallel_ops.of_kind(EventKind.OP, EventKind.ANNOTATION).spans(),
        peer_copies.spans(),
        work.of_kind(EventKind.COLLECTIVE).spans(),
    )
    computing = union_of(ledger.spans["matmul"], ledger.spans["kernels"])
    spans = subtract(intersect(parallel_time, steps.interior_spans), computing)
    return DataParallelCost(
        gpus=sum(share > 0 for _, share in shares),
        exposed_ns=spans.total_ns // len(ledger.step_ns),
        shares=shares,
        spans=spans,
    )


def _is_peer_copy(run: Run) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return, for each name, whether it is a copy between GPUs; the last entry is for unnamed events."""
    vocabulary = run.event_rows.text("name").vocabulary
    return np.array([*(copy_direction(word) == "PtoP" for word in vocabulary), False], bool)
