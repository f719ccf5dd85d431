"""Rules about several GPUs visible to one process: DataParallel, and idle GPUs."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.events.device_work import devices
from gpulab.analysis.ranks.data_parallel import Shares, data_parallel_cost, gpu_busy_shares
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, Finding, known_numbers
from gpulab.rules.engine.needs import Need
from gpulab.rules.engine.phrases import step_or_recording, step_spends
from gpulab.rules.ranks.parallelism import ddp_script
from gpulab.run import Run
from gpulab.wording import percent, plural

_MIN_REPLICATION_FRAC = 0.03

_IDLE_FRAC = 0.02  # NVML reports 0 % for an idle GPU; one that drives a display shows 1-2 %
_BUSY_FRAC = 0.10
_WELL_USED_FRAC = 0.5  # if the busiest GPU mostly waits, more GPUs do not help
_MIN_HELD_BYTES = 512 << 20  # an empty CUDA context takes up to 500 MiB; more belongs to another process's work

OTHER_GPUS = Need(
    "the utilisation of all GPUs, if there are several (by %%gpuprofile)",
    lambda evidence: (
        len(evidence.run.gpu_rows) > 0 or len(evidence.run.machine.gpus) < 2 or len(devices(evidence.run)) > 1
    ),
    "the utilisation of the other GPUs was not read",
    "profile with %%gpuprofile: a trace holds one process only",
)


def data_parallel(evidence: Evidence) -> Finding | None:
    """One process drives several GPUs with DataParallel, which copies the model to all of them in every step.

    Proof: `DataParallel.forward` in the trace, and more than one GPU with work.

    Confused with: DistributedDataParallel, which runs one process per GPU and communicates only gradients; DataParallel
    on a single GPU, which does nothing.

    What to do: use DistributedDataParallel, started with torchrun.
    """
    replication = evidence.cached(data_parallel_cost)
    if replication is None:
        return None
    share = evidence.step_share(replication.exposed_ns)
    is_costly = share >= _MIN_REPLICATION_FRAC
    cost = (
        f"meanwhile the busiest GPU runs no kernel during {percent(share)} {step_or_recording(evidence)}"
        if is_costly
        else "this costs little here"
    )
    return Finding(
        ledger_parts=evidence.idle_parts_of(replication.spans, "communication", "copies") if is_costly else (),
        claim=f"DataParallel copies the model to {replication.gpus} GPUs in every step; {cost}.",
        evidence=(
            f"{step_spends(evidence, evidence.unprofiled_ns(replication.exposed_ns))} "
            "on replicating the model, scattering, "
            "gathering and reducing, with no concurrent kernel on the busiest GPU.",
            _by_device(replication.shares),
        ),
        numbers=known_numbers(exposed_frac=share, exposed_ns=replication.exposed_ns, gpus=replication.gpus),
        fix=ddp_script(evidence, replication.gpus, from_one=True),
        advice="DistributedDataParallel needs a script with one process per GPU; it does not run in a notebook cell.",
        gain=evidence.gain_of_removing(
            evidence.unprofiled_ns(replication.exposed_ns),
            "removing 50 to 90 % of the overhead of DataParallel",
            "data parallelism at no cost",
            (0.5, 0.9),
            replication.spans,
        )
        if is_costly
        else None,
        confidence=CERTAIN,
        spans=replication.spans,
        informs_only=not is_costly,
    )


def _by_device(shares: Shares) -> str:
    return "Busy: " + ", ".join(f"GPU {device} {percent(share)}" for device, share in shares) + " of the time."


def idle_gpus(evidence: Evidence) -> Finding | None:
    """Some GPUs that this process may use are idle while another one works.

    Proof: the driver's utilisation of each GPU over the run; without sensors, the GPUs with work in the trace.

    Confused with: a GPU that another process uses (memory in use on it); GPUs of other ranks of the same job, which are
    busy; a cell that only tries something out.

    What to do: run one process per GPU with torchrun, or leave the other GPUs to other users: CUDA_VISIBLE_DEVICES.
    """
    shares = _busy_shares(evidence)
    busy = [(share, device) for device, share in shares if share >= _BUSY_FRAC]
    idle = [device for device, share in shares if share < _IDLE_FRAC and not _is_held(evidence.run, device)]
    if not busy or not idle:
        return None
    busiest_frac, busiest = max(busy)
    gpus = len(shares)
    by_sensors = bool(_sampled_shares(evidence.run))
    is_well_used = busiest_frac >= _WELL_USED_FRAC
    return Finding(
        claim=f"{len(idle)} of {gpus} GPUs {plural(len(idle), 'is', 'are')} idle while GPU {busiest} works.",
        evidence=(
            _by_device(shares) if gpus <= 16 else f"GPU {busiest} is busy {percent(busiest_frac)} of the time.",
            "Measured by the driver during the run." if by_sensors else "Measured from the device work in the trace.",
        ),
        numbers=known_numbers(idle_gpus=len(idle), gpus=gpus, busiest_frac=busiest_frac),
        fix=ddp_script(evidence, len(idle) + len(busy), from_one=False),
        advice="One process per GPU needs a script; it does not run in a notebook cell. "
        + (
            "If one GPU is enough, set CUDA_VISIBLE_DEVICES before Python starts, so that others can use the rest."
            if is_well_used
            else f"First fix the cause that keeps GPU {busiest} waiting: more GPUs would wait in the same way."
        ),
        confidence=LIKELY,
        from_steps=not by_sensors,
        informs_only=not is_well_used,
    )


def _busy_shares(evidence: Evidence) -> Shares:
    """Return each GPU and the share of time it was busy: by sensors, else by the trace; () if neither is available."""
    sampled = _sampled_shares(evidence.run)
    if len(sampled) > 1:
        return sampled
    return evidence.cached(gpu_busy_shares) if evidence.optional_ledger is not None and not sampled else ()


def _sampled_shares(run: Run) -> Shares:
    samples = run.gpu_rows
    samples_with_util = samples.select(~np.isnan(samples["util_frac"]))
    return tuple(
        (device, float(samples_with_util["util_frac"][samples_with_util["device"] == device].mean()))
        for device in np.unique(samples_with_util["device"]).tolist()
    )


def _is_held(run: Run, device: int) -> bool:
    """Whether another process holds memory on this GPU, or any process if the driver does not report whose it is."""
    samples = run.gpu_rows.select(run.gpu_rows["device"] == device)
    for column in ("others_memory_bytes", "memory_used_bytes"):
        readings = samples[column][~np.isnan(samples[column])]
        if len(readings):
            return bool(np.median(readings) > _MIN_HELD_BYTES)
    return False
