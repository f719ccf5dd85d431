"""Rules about several GPUs in sight of one process: one that feeds them all, and some that do nothing."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.events.device_work import devices
from gpulab.analysis.ranks.data_parallel import Shares, replicated, worked
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, figures
from gpulab.rules.engine.needs import Need
from gpulab.rules.engine.phrases import duration_in_step, of_each_step
from gpulab.rules.ranks.parallelism import spread_over
from gpulab.run import Run
from gpulab.wording import percent, plural

REPLICAS_WORTH_FRAC = 0.03

DOES_NOTHING_FRAC = 0.02  # NVML says 0 % of an idle GPU; one that draws a screen shows 1-2 %
WORKS_FRAC = 0.10
WELL_FED_FRAC = 0.5  # a GPU that waits more than it works does not need others beside it
HELD_BYTES = 512 << 20  # an empty CUDA context takes up to 500 MiB; more is somebody's work

OTHER_GPUS = Need(
    lambda evidence: (
        len(evidence.run.gpu_rows) > 0 or len(evidence.run.machine.gpus) < 2 or len(devices(evidence.run)) > 1
    ),
    "what the other GPUs did was not read",
    "profile here with %%gpuprofile: a trace tells of one process only",
)


def data_parallel(evidence: Evidence) -> Finding | None:
    """One process feeds several GPUs with DataParallel: it copies the model to all of them in every step.

    Proof: `DataParallel.forward` in the trace, and more than one GPU that worked. Confused with:
    DistributedDataParallel, one process a GPU, which copies nothing but gradients; DataParallel on a single GPU, which
    does nothing. What to do: DistributedDataParallel, started by torchrun.
    """
    told = evidence.once(replicated)
    if told is None:
        return None
    share = evidence.step_share(told.exposed_ns)
    worth = share >= REPLICAS_WORTH_FRAC
    cost = (
        f"the first one computes nothing {percent(share)} {of_each_step(evidence)} meanwhile"
        if worth
        else "which costs little here"
    )
    return Finding(
        parts=("communication", "copies") if worth else (),
        claim=f"DataParallel copies the model to {told.gpus} GPUs in every step; {cost}.",
        evidence=(
            f"{duration_in_step(evidence, told.exposed_ns)} goes to replicating, scattering, gathering and adding up, "
            "with no kernel beside it on the GPU that works most.",
            _by_device(told.shares),
        ),
        numbers=figures(exposed_frac=share, exposed_ns=told.exposed_ns, gpus=told.gpus),
        fix=spread_over(evidence, told.gpus, from_one=True),
        advice="DistributedDataParallel needs a script and one process a GPU: it does not run in a notebook cell.",
        gain=evidence.bounded(
            evidence.plain_ns(told.exposed_ns),
            "what DataParallel adds to each step, removed by 50 to 90 %",
            "even free data parallelism",
            (0.5, 0.9),
            told.spans,
        )
        if worth
        else None,
        confidence=CERTAIN,
        shown_by=told.spans,
        aside=not worth,
    )


def _by_device(shares: Shares) -> str:
    return "Busy: " + ", ".join(f"GPU {device} {percent(share)}" for device, share in shares) + " of the time."


def idle_gpus(evidence: Evidence) -> Finding | None:
    """Some of the GPUs that this process may use do nothing while another one works.

    Proof: the driver's utilisation of each GPU over the run; without sensors, the GPUs that worked in the trace.
    Confused with: a GPU that another process has taken (memory in use on it), GPUs of other ranks of the same job
    (which are busy), and a cell that only tries something out. What to do: one process a GPU with torchrun, or leave
    the others to somebody else: CUDA_VISIBLE_DEVICES.
    """
    shares = _shares(evidence)
    busy = [(share, device) for device, share in shares if share >= WORKS_FRAC]
    free = [device for device, share in shares if share < DOES_NOTHING_FRAC and not _held(evidence.run, device)]
    if not busy or not free:
        return None
    most, first = max(busy)
    gpus = len(shares)
    by_sensors = bool(_sampled(evidence.run))
    well_fed = most >= WELL_FED_FRAC
    return Finding(
        claim=f"{len(free)} of {gpus} GPUs {plural(len(free), 'does', 'do')} nothing while GPU {first} works.",
        evidence=(
            _by_device(shares) if gpus <= 16 else f"GPU {first} is busy {percent(most)} of the time.",
            "Read from the driver's sensors during the run." if by_sensors else "By the work in the trace.",
        ),
        numbers=figures(idle_gpus=len(free), gpus=gpus, busiest_frac=most),
        fix=spread_over(evidence, len(free) + len(busy), from_one=False),
        advice="One process a GPU needs a script: it does not run in a notebook cell. "
        + (
            "Where one GPU is enough, set CUDA_VISIBLE_DEVICES before Python starts, and others can use the rest."
            if well_fed
            else f"Mend first what keeps GPU {first} waiting: more GPUs would wait alike."
        ),
        confidence=LIKELY,
        from_steps=not by_sensors,
        aside=not well_fed,
    )


def _shares(evidence: Evidence) -> Shares:
    """Each GPU and the share of time it worked: by sensors, else by the trace; () where neither tells."""
    sampled = _sampled(evidence.run)
    if len(sampled) > 1:
        return sampled
    return evidence.once(worked) if evidence.accounts is not None and not sampled else ()


def _sampled(run: Run) -> Shares:
    samples = run.gpu_rows
    told = samples.where(~np.isnan(samples["util_frac"]))
    return tuple(
        (device, float(told["util_frac"][told["device"] == device].mean()))
        for device in np.unique(told["device"]).tolist()
    )


def _held(run: Run, device: int) -> bool:
    """Whether another process keeps memory on this GPU; where the driver does not say whose it is, anybody."""
    samples = run.gpu_rows.where(run.gpu_rows["device"] == device)
    for column in ("others_memory_bytes", "memory_used_bytes"):
        known = samples[column][~np.isnan(samples[column])]
        if len(known):
            return bool(np.median(known) > HELD_BYTES)
    return False
