"""A rule about batches that are too small to fill the GPU."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.kernels.interior_kernels import interior_kernels
from gpulab.analysis.kernels.occupancy import GpuFill, gpu_fill
from gpulab.rules.data.loader_code import LoaderChange, change_loader
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, known_numbers
from gpulab.rules.engine.phrases import sentences, step_or_recording, step_spends
from gpulab.rules.kernels.device_bound import BUSY_PARTS
from gpulab.wording import percent

_MIN_SMALL_FRAC = 0.5  # of kernel time in grids with fewer blocks than the GPU has multiprocessors
_MAX_FILLED_FRAC = 0.9  # if kernels fill more of the GPU, a larger batch does not help
_MIN_BUSY_FRAC = 0.6  # a GPU that is less busy is limited by the host or by data loading
_REPEATED_FRAC = 0.5  # of the small kernels' time in consecutive launches of one kernel: a Python loop over a tensor
_MIN_FREE_FRAC = 0.5  # of GPU memory, for a larger batch to fit


def small_batch(evidence: Evidence) -> Finding | None:
    """The GPU is busy, but many of its multiprocessors are idle: the kernels are too small to fill it.

    Proof: most of the kernel time is in kernels with fewer thread blocks than the GPU has multiprocessors; on average,
    at most 90 % of these get a block. The host is not the limit. At least half of the GPU memory is free, or unknown.

    Confused with: a host that is too slow for the GPU (`dispatch_bound`, `no_workers`): fix that first. The batch
    cannot grow where inference answers one request at a time.

    What to do: use a larger batch as long as samples per second still rise, adapt the learning rate, and check the
    validation result. In inference, merge waiting requests into one batch.
    """
    kernels = evidence.cached(interior_kernels)
    occupancy = gpu_fill(kernels) if kernels is not None else None
    if occupancy is None or occupancy.known_frac < _MIN_SMALL_FRAC or occupancy.small_frac < _MIN_SMALL_FRAC:
        return None
    if occupancy.filled_frac > _MAX_FILLED_FRAC or evidence.ledger.typical_frac(*BUSY_PARTS) < _MIN_BUSY_FRAC:
        return None
    used_frac = _used_frac(evidence)
    if used_frac is not None and used_frac > 1 - _MIN_FREE_FRAC:
        return None
    share = evidence.step_share(occupancy.small_ns)
    change = _double_batch(evidence)
    return Finding(
        ledger_parts=("matmul", "kernels"),
        claim=f"{percent(share)} {step_or_recording(evidence)} goes to kernels that fill only "
        f"{percent(occupancy.filled_frac)} of the GPU: the batch is too small.",
        evidence=(
            f"{step_spends(evidence, evidence.unprofiled_ns(occupancy.small_ns))} "
            f"in kernels of {occupancy.blocks} thread blocks (median) on {occupancy.multiprocessors} multiprocessors.",
            *((f"Peak GPU memory in use: {percent(used_frac)}.",) if used_frac is not None else ()),
            *_repeated_kernels(occupancy),
            *_tail_effect(occupancy),
        ),
        numbers=known_numbers(
            small_frac=occupancy.small_frac,
            filled_frac=occupancy.filled_frac,
            cost_ns=occupancy.small_ns,
            memory_frac=used_frac,
        ),
        fix=change.code,
        advice=sentences(
            change.advice,
            "Keep doubling the batch while samples per second rise; then scale the learning rate with it, or keep it "
            "and watch the loss. The gain of a larger batch cannot be predicted: try it.",
        ),
        confidence=SUSPECT if used_frac is None else LIKELY,
        confidence_reason="GPU memory use was not recorded" if used_frac is None else "",
        spans=occupancy.spans,
    )


def _repeated_kernels(occupancy: GpuFill) -> tuple[str, ...]:
    """Return evidence of a Python loop over slices of a tensor: consecutive launches of one kernel."""
    if occupancy.repeated_frac < _REPEATED_FRAC:
        return ()
    return (
        f"{occupancy.repeated_calls:,} of them per step are consecutive launches of the same kernel: if they process "
        "slices "
        "of one tensor, a single call on the whole tensor runs them in parallel.",
    )


def _tail_effect(occupancy: GpuFill) -> tuple[str, ...]:
    if occupancy.tail_frac is None or occupancy.tail_frac < 0.25:
        return ()
    return (
        f"The other kernels waste {percent(occupancy.tail_frac)} of their capacity in a partly filled last wave "
        "(tail effect).",
    )


def _used_frac(evidence: Evidence) -> float | None:
    """Return the peak memory use of the GPU as a fraction of its memory; None if it was not recorded."""
    run = evidence.run
    gpu = next(iter(run.machine.gpus), None)
    if gpu is None or not gpu.memory_bytes:
        return None
    readings = [
        run.gpu_rows["memory_used_bytes"],
        run.allocator_rows["peak_reserved_bytes"].astype(np.float64),
        run.memory_rows["reserved_bytes"][run.memory_rows["device"] >= 0].astype(np.float64),
    ]
    peaks = [float(values[values > 0].max()) for values in readings if (values > 0).any()]
    return min(1.0, max(peaks) / gpu.memory_bytes) if peaks else None


def _double_batch(evidence: Evidence) -> LoaderChange:
    loader = next(iter(evidence.run.loaders), None)
    if loader is None:
        return LoaderChange()
    size = 2 * loader.batch_size if loader.batch_size else f"2 * {evidence.names.loader}.batch_size"
    return change_loader(evidence, loader, {"batch_size": size})
