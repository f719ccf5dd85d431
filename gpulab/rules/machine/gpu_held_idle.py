"""A rule about a GPU that is reserved but idle."""

from __future__ import annotations

import numpy as np

from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, Finding, known_numbers
from gpulab.wording import duration, percent, size

_MIN_RUN_NS = 120_000_000_000  # two minutes: set-up, downloads and imports take less
_IDLE_UTIL_FRAC = 0.01  # utilisation below this counts as idle (as in the ICSE'24 study of GPU jobs)
_MIN_IDLE_FRAC = 0.9  # of the samples; a pause between two uses is shorter
_MIN_HELD_BYTES = 1 << 30  # the driver and the CUDA context take half a GiB per process


def gpu_held_idle(evidence: Evidence) -> Finding | None:
    """GPU memory is held for a long time while almost no kernel runs.

    Proof: sensor samples of a run of at least two minutes: memory in use that belongs to no other process, and no
    kernel in nine of ten samples.

    Confused with: a loop that starves its GPU, which has kernels in every second; memory of other processes; a GPU that
    was never used.

    What to do: release the memory while you are not using the GPU, or run such work as a script.
    """
    samples = evidence.run.gpu_rows
    if evidence.run.span_ns < _MIN_RUN_NS:
        return None
    for device in np.unique(samples["device"]).tolist():
        device_samples = samples.select(samples["device"] == device)
        used_bytes, util = device_samples["memory_used_bytes"], device_samples["util_frac"]
        others_bytes = np.nan_to_num(device_samples["others_memory_bytes"])
        is_known = ~np.isnan(used_bytes) & ~np.isnan(util)
        if not is_known.any():
            continue
        is_idle, held_bytes = util[is_known] < _IDLE_UTIL_FRAC, float(np.median((used_bytes - others_bytes)[is_known]))
        if is_idle.mean() >= _MIN_IDLE_FRAC and held_bytes >= _MIN_HELD_BYTES:
            return _finding(evidence, device, float(is_idle.mean()), held_bytes)
    return None


def _finding(evidence: Evidence, device: int, idle_frac: float, held_bytes: float) -> Finding:
    model = evidence.names.model
    return Finding(
        claim=f"GPU {device} was reserved for {duration(evidence.run.span_ns)} "
        f"and idle for {percent(idle_frac)} of that time.",
        evidence=(
            f"{size(held_bytes)} of its memory was in use, and no kernel ran in {percent(idle_frac)} of the samples.",
        ),
        numbers=known_numbers(idle_frac=idle_frac, held_bytes=held_bytes, span_ns=evidence.run.span_ns),
        fix="import gc\n"
        "import torch\n\n"
        f'{model} = {model}.to("cpu")  # move it back with .to("cuda")\n'
        "gc.collect()\n"
        "torch.cuda.empty_cache()     # returns the memory to the driver",
        advice="Other users could use the GPU meanwhile. Shut the kernel down when you are done, and run long jobs "
        "as a script, which releases the GPU when it ends.",
        confidence=CERTAIN,
        from_steps=False,
        informs_only=True,
    )
