"""Rules about how kernels fill the GPU: batches too small for it."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.kernels.interior import interior
from gpulab.analysis.kernels.occupancy import Filling, filling
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, figures
from gpulab.rules.engine.phrases import duration_in_step, of_each_step
from gpulab.rules.kernels.device_bound import WORKING
from gpulab.wording import percent

SMALL_FRAC = 0.5  # of kernel time in grids with fewer blocks than multiprocessors
FILLED_FRAC = 0.9  # kernels that fill more leave nothing to a larger batch
WORKING_FRAC = 0.6  # a GPU that works less than this has other worries: its host, its data
ALIKE_FRAC = 0.5  # of the time of small kernels: so much in calls of one kernel in a row is a loop over something
FREE_FRAC = 0.5  # at least so much of the memory must be free for a larger batch to be the advice


def small_batch(evidence: Evidence) -> Finding | None:
    """The GPU is busy, but most of its multiprocessors have nothing to do: each kernel is too small for it.

    Proof: kernels with fewer thread blocks than the GPU has multiprocessors, a tenth less on average, take most of the
    kernel time, the host is not the limit, and half of the memory is free. Confused with: a host that feeds the GPU
    too slowly (`dispatch_bound`, `no_workers`), which comes first; inference that must answer one request at a time;
    memory that is full. What to do: a larger batch, as long as the samples per second still rise; or several at once.
    """
    kernels = evidence.once(interior)
    told = filling(kernels) if kernels is not None else None
    if told is None or told.told_frac < SMALL_FRAC or told.small_frac < SMALL_FRAC:
        return None
    if told.filled_frac > FILLED_FRAC:
        return None
    if evidence.ledger.share(*WORKING) < WORKING_FRAC:
        return None
    used = _used_frac(evidence)
    if used is not None and used > 1 - FREE_FRAC:
        return None
    share = evidence.step_share(told.small_ns)
    return Finding(
        parts=("matmul", "kernels"),
        claim=f"{percent(share)} {of_each_step(evidence)} goes to kernels that fill {percent(told.filled_frac)} of the "
        "GPU: the batch is too small for it.",
        evidence=(
            f"{duration_in_step(evidence, told.small_ns)} in kernels of {told.blocks} thread blocks (median) on "
            f"{told.multiprocessors} multiprocessors.",
            *((f"At most {percent(used)} of the GPU's memory is in use.",) if used is not None else ()),
            *_alike(told),
            *_tail(told),
        ),
        numbers=figures(
            small_frac=told.small_frac, filled_frac=told.filled_frac, cost_ns=told.small_ns, memory_frac=used
        ),
        fix=_twice(evidence),
        advice="Go on doubling while the samples per second rise; then raise the learning rate in step, or keep it "
        "and watch the loss. How much a larger batch gains, only trying tells.",
        confidence=SUSPECT if used is None else LIKELY,
        why_confidence="how full the GPU's memory is was not recorded" if used is None else "",
        shown_by=told.spans,
    )


def _alike(told: Filling) -> tuple[str, ...]:
    """Calls of one kernel in a row: a loop over the rows of something, which one call could do together."""
    if told.alike_frac < ALIKE_FRAC:
        return ()
    return (
        f"{told.alike:,} of them in each step are the same kernel again and again: where these work on parts of one "
        "tensor, one call on the whole of it does them side by side.",
    )


def _tail(told: Filling) -> tuple[str, ...]:
    if told.tail_frac is None or told.tail_frac < 0.25:
        return ()
    return (f"Of the other kernels' room {percent(told.tail_frac)} stays empty in the last wave of their blocks.",)


def _used_frac(evidence: Evidence) -> float | None:
    """The most of the GPU's memory that was in use; None where it was not recorded."""
    run = evidence.run
    gpu = next(iter(run.machine.gpus), None)
    if gpu is None or not gpu.memory_bytes:
        return None
    readings = [
        run.gpu_rows["memory_used_bytes"],
        run.allocator_rows["peak_reserved_bytes"].astype(np.float64),
        run.memory_rows["reserved_bytes"][run.memory_rows["device"] >= 0].astype(np.float64),
    ]
    most = [float(values[values > 0].max()) for values in readings if (values > 0).any()]
    return min(1.0, max(most) / gpu.memory_bytes) if most else None


def _twice(evidence: Evidence) -> str:
    loader = next(iter(evidence.run.loaders), None)
    names = evidence.names
    if loader is None:
        return ""
    size = 2 * loader.batch_size if loader.batch_size else f"2 * {names.loader}.batch_size"
    workers = f", num_workers={loader.workers}" if loader.workers else ""
    return (
        "from torch.utils.data import DataLoader\n\n"
        f"{names.loader} = DataLoader({names.dataset}, batch_size={size}, shuffle=True{workers}, pin_memory=True)"
    )
