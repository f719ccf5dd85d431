"""Several GPUs in one process: how busy each of them was, and what spreading a model over them in every step costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.copies.table import direction
from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger, main_device
from gpulab.intervals import Spans, intersect, merged, subtract
from gpulab.run import Run
from gpulab.tables import Kind

Shares = tuple[tuple[int, float], ...]  # GPU and the share of time it worked
# What torch.nn.parallel calls to spread a model and to gather its results; backward, each does the other's work.
_SPREADS = ("Broadcast", "Scatter", "Gather", "ReduceAddCoalesced", "comm::", "aten::_broadcast_coalesced")


def worked(run: Run, steps: Steps, ledger: Ledger) -> Shares:
    """The GPUs that worked in this run, and the share of the interior steps in which each did."""
    window = steps.interior_spans
    if ledger.device != "gpu":
        return ()
    found = np.unique(run.event_rows["device"][run.event_rows["kind"] >= Kind.KERNEL]).tolist()
    return tuple(
        (device, intersect(device_work(run, device).spans(), window).total_ns / max(1, window.total_ns))
        for device in found
        if device >= 0
    )


@dataclass(frozen=True, kw_only=True)
class Replicated:
    """What DataParallel costs, per interior step."""

    gpus: int
    exposed_ns: int  # spreading and gathering with no kernel beside it on the GPU that works most
    shares: Shares
    spans: Spans


def replicated(run: Run, steps: Steps, ledger: Ledger) -> Replicated | None:
    """What DataParallel costs; None where it does not run, or has one GPU only."""
    events = run.event_rows
    if "DataParallel.forward" not in events.words("name").vocabulary:
        return None
    shares = worked(run, steps, ledger)
    if sum(share > 0 for _, share in shares) < 2:
        return None
    spreads = events.where(events.matching(lambda word: word.startswith(_SPREADS)))
    work = device_work(run, main_device(run))
    moved = work.where(_between(run)[work["name"]] & work.is_kind(Kind.MEMCPY))
    doing = merged(
        spreads.of_kind(Kind.OP, Kind.ANNOTATION).spans(), moved.spans(), work.of_kind(Kind.COLLECTIVE).spans()
    )
    computing = merged(ledger.spans["matmul"], ledger.spans["kernels"])
    spans = subtract(intersect(doing, steps.interior_spans), computing)
    return Replicated(
        gpus=sum(share > 0 for _, share in shares),
        exposed_ns=spans.total_ns // len(ledger.step_ns),
        shares=shares,
        spans=spans,
    )


def _between(run: Run) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """For each name, whether it is a copy from one GPU to another; the last answer is for no name."""
    vocabulary = run.event_rows.words("name").vocabulary
    return np.array([*(direction(word) == "PtoP" for word in vocabulary), False], bool)
