"""Rules about a GPU that is held without being used."""

from __future__ import annotations

import numpy as np

from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, Finding, figures
from gpulab.wording import duration, percent, size

LONG_NS = 120_000_000_000  # two minutes: set-up, downloads and imports of a good run take less
UNUSED_FRAC = 0.01  # utilisation below this is none (ICSE'24 labels idle jobs so)
MOST_FRAC = 0.9  # of the samples; a pause between two uses is shorter
HELD_BYTES = 1 << 30  # the driver and CUDA alone take half a GiB in every process that has touched the GPU


def gpu_held_idle(evidence: Evidence) -> Finding | None:
    """The GPU's memory is held for a long time, and hardly anything runs on it.

    Proof: sensors of a run of two minutes and more: memory in use that is not another process's, and no kernel in nine
    samples of ten. Confused with: a loop that starves its GPU (that has kernels in every second), another process's
    memory, a GPU that was never touched. What to do: release the memory while you think, or run such work in a script.
    """
    samples = evidence.run.gpu_rows
    if evidence.run.span_ns < LONG_NS:
        return None
    for device in np.unique(samples["device"]).tolist():
        mine = samples.where(samples["device"] == device)
        used, util = mine["memory_used_bytes"], mine["util_frac"]
        others = np.nan_to_num(mine["others_memory_bytes"])
        told = ~np.isnan(used) & ~np.isnan(util)
        if not told.any():
            continue
        idle, held = util[told] < UNUSED_FRAC, float(np.median((used - others)[told]))
        if idle.mean() >= MOST_FRAC and held >= HELD_BYTES:
            return _held(evidence, device, float(idle.mean()), held)
    return None


def _held(evidence: Evidence, device: int, idle_frac: float, held_bytes: float) -> Finding:
    model = evidence.names.model
    return Finding(
        claim=f"GPU {device} was held for {duration(evidence.run.span_ns)} "
        f"and did nothing for {percent(idle_frac)} of that time.",
        evidence=(
            f"{size(held_bytes)} of its memory were in use, and no kernel ran in {percent(idle_frac)} of the samples.",
        ),
        numbers=figures(idle_frac=idle_frac, held_bytes=held_bytes, span_ns=evidence.run.span_ns),
        fix="import gc\n"
        "import torch\n\n"
        f'{model} = {model}.to("cpu")  # bring it back with .to("cuda")\n'
        "gc.collect()\n"
        "torch.cuda.empty_cache()     # gives the memory back to the driver",
        advice="Others on this machine could use it meanwhile. Shut the kernel down when you are done, and run long "
        "jobs as a script: a script ends, a notebook stays.",
        confidence=CERTAIN,
        from_steps=False,
        aside=True,
    )
