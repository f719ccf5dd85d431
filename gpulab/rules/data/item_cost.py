"""Rules about what the items themselves cost: waits for storage, and CPU time that there is not enough of."""

from __future__ import annotations

from math import ceil

from gpulab.analysis.data.loader import Feeding
from gpulab.analysis.data.workers import crew
from gpulab.analysis.host.cpu_contention import contention
from gpulab.replay.worker_queue import demanded_ns
from gpulab.rules.data.late_batches import BLOCKED_FRAC, FULL_FRAC, WAITING_FRAC, Cause, why_late
from gpulab.rules.data.loader_code import KEPT, rebuilt
from gpulab.rules.data.no_workers import loader_numbers, model_threads, time_in_loader
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, Gain
from gpulab.rules.engine.phrases import idle_share
from gpulab.wording import count, duration, metric, number, percent

CHEAPER = (
    "Make the items cheaper: keep what is the same each time (decoding, resizing) and leave only what is augmented at "
    "random to the loop; store them at the size you need; vectorise what is left, or do it on the GPU."
)
KEEPABLE = 100_000  # more items than this are no longer kept in memory without thinking: at 150 kB each, 15 GB
UNCROWDED_FRAC = 0.7  # what the model's CPU time was lessened to once no workers shared its cores and caches


def slow_storage(seen: Evidence) -> Finding | None:
    """Batches are late because whoever builds them waits for storage: a disk, or a network.

    Proof: workers in state D (waiting for a read) in a third of all looks or more; without workers, a main thread
    that computes little in `__next__` while a core is idle with a read outstanding; or files on a network file system
    and workers that hardly compute. Confused with: cold files, which only the first epoch pays for; items that wait
    for something else, such as a web service (`too_few_workers`); too few workers. What to do: keep the items in
    memory, or copy the files to a local disk or /dev/shm; read few large files instead of many small ones.
    """
    feeding = seen.feeding
    if feeding is None or why_late(seen) is not Cause.STORAGE:
        return None
    share = seen.ledger.share("loader")
    who = "the DataLoader's workers wait" if feeding.workers else "the main process waits"
    kind = feeding.setup.location if feeding.setup else None
    where = f"storage ({kind})" if kind else "storage"
    blocked = (feeding.blocked_frac or 0) > BLOCKED_FRAC
    return Finding(
        parts=("loader",),
        claim=f"{idle_share(seen, share)}: {who} for {where}.",
        evidence=(time_in_loader(seen, feeding), *_waits(seen, feeding)),
        numbers=loader_numbers(feeding, share),
        fix=kept_in_memory(seen, feeding),
        advice="Where the data does not fit in memory: copy it to a local disk or /dev/shm before training, and pack "
        "small files into few large ones. More workers help as far as the storage keeps up. In the first epoch after a "
        "start all files are cold: if a second one is fast, nothing is wrong.",
        gain=_freed(seen, feeding, "reads that are not waited for: 50 to 100 % of the exposed wait", 0.5),
        confidence=LIKELY if blocked or not feeding.workers else SUSPECT,
        shown_by=seen.ledger.spans["loader"],
        caveats=memory_caveat(feeding),
    )


def cpu_bound_loading(seen: Evidence) -> Finding | None:
    """Making an item takes so much CPU time that all cores together cannot keep up; more workers cannot help.

    Proof: batches are late, those who build them compute rather than wait, and the cores are full: by their load, or
    because a batch and the rest of its step need more CPU time than a step has. Confused with: workers that wait
    (`slow_storage`, `too_few_workers`), and threads that only get in one another's way (`cpu_oversubscription`). What
    to do: make each item once and keep it, decode at the size you need, vectorise, or move heavy transforms to the GPU.
    """
    feeding = seen.feeding
    if feeding is None or why_late(seen) is not Cause.ITEMS:
        return None
    share, cores = seen.ledger.share("loader"), seen.run.machine.cores_allowed
    full = "all cores are busy" if cores is None else f"all {count(cores, 'core is', 'cores are')} busy"
    return Finding(
        parts=("loader",),
        claim=f"{idle_share(seen, share)}: the items need more CPU time than there is; {full}.",
        evidence=(time_in_loader(seen, feeding), *_cpu_of_a_batch(feeding, cores)),
        numbers=loader_numbers(feeding, share),
        fix=kept_in_memory(seen, feeding),
        advice=f"More workers cannot help. {CHEAPER}",
        gain=cheaper(seen, feeding),
        confidence=LIKELY,
        shown_by=seen.ledger.spans["loader"],
        caveats=memory_caveat(feeding),
    )


def cheaper(seen: Evidence, feeding: Feeding) -> Gain:
    """What items that are made once and kept would give."""
    return _freed(seen, feeding, "items made once, before training: 70 to 100 % of the exposed wait", 0.7)


def _freed(seen: Evidence, feeding: Feeding, basis: str, least: float) -> Gain:
    """What data that costs nothing would give; where workers held up the model's own threads, these are freed too."""
    rest_ns = feeding.rest_ns
    best_ns = min(rest_ns, feeding.least_rest_ns or rest_ns)
    cores = seen.run.machine.cores_allowed
    if not seen.on_gpu and feeding.workers and cores and feeding.rest_cpu_ns:
        alone_ns = ceil(feeding.rest_cpu_ns / min(cores, model_threads(seen) or cores))
        best_ns = max(1, min(best_ns, ceil(UNCROWDED_FRAC * alone_ns)))
    return Gain(
        step_ns=feeding.step_ns,
        best_ns=best_ns,
        worst_ns=max(best_ns, feeding.step_ns - round(least * (feeding.step_ns - rest_ns))),
        floor_ns=best_ns,
        basis=basis,
        floor_means="even free data",
    )


def _waits(seen: Evidence, feeding: Feeding) -> tuple[str, ...]:
    """What shows that storage is waited for, and how fast it gives."""
    told = []
    workers, crowd = seen.once(crew), seen.once(contention)
    if feeding.workers and feeding.blocked_frac is not None:
        told.append(f"Workers were waiting for a read in {percent(feeding.blocked_frac)} of the looks at them.")
    if workers is not None and workers.read_bytes_per_s:
        told.append(f"They read {metric(workers.read_bytes_per_s, 'B/s')} from storage, all together.")
    if workers is not None and workers.busy_frac < WAITING_FRAC:
        told.append(f"A worker computes {percent(workers.busy_frac)} of the time.")
    if not feeding.workers and feeding.cpu_frac is not None:
        told.append(f"The main thread computes in {percent(feeding.cpu_frac)} of that time.")
        if crowd is not None and crowd.read_bytes_per_s:
            told.append(f"It reads {metric(crowd.read_bytes_per_s, 'B/s')} from storage.")
        if crowd is not None and crowd.iowait_cores:
            told.append(f"On average {number(crowd.iowait_cores, 2)} cores were idle with a read outstanding.")
    return tuple(told)


def _cpu_of_a_batch(feeding: Feeding, cores: float | None) -> tuple[str, ...]:
    told = []
    batch_ns = feeding.worker_cpu_ns if feeding.workers else feeding.fetch_cpu_ns
    if batch_ns is not None:
        told.append(f"Building a batch takes {duration(batch_ns)} of CPU time, all who build it together.")
    demand_ns = demanded_ns(feeding)
    if demand_ns is not None and cores is not None:
        told.append(
            f"With the rest of the step that is {duration(demand_ns)}; "
            f"{count(cores, 'core gives', 'cores give')} {duration(cores * feeding.step_ns)} in a step."
        )
    if feeding.cores_frac is not None and feeding.cores_frac >= FULL_FRAC:  # less is said by the figures above
        told.append(f"The cores were {percent(feeding.cores_frac)} busy.")
    return tuple(told)


def kept_in_memory(seen: Evidence, feeding: Feeding) -> str:
    """The items made once and kept, as code; none where they are too many for that."""
    if (_items(feeding) or 0) > KEEPABLE:
        return ""
    return f"import torch\n\n{KEPT}\n{rebuilt(seen, feeding.setup, {'num_workers': 0}, 'Kept({dataset})')}"


def memory_caveat(feeding: Feeding) -> tuple[str, ...]:
    """What keeping the items costs."""
    items = _items(feeding)
    if (items or 0) > KEEPABLE:
        return (f"With {items:,} items memory may be too small to keep them: keep them in files on a local disk.",)
    many = f"all {items:,} items" if items else "all items"
    return (
        f"Kept holds {many} in memory, and making them takes as long as an epoch does now: it pays from the second "
        "epoch on. Random augmentation would be frozen in it.",
    )


def _items(feeding: Feeding) -> int | None:
    """How many items an epoch has; None where that is not known."""
    setup = feeding.setup
    return setup.batches * setup.batch_size if setup and setup.batches and setup.batch_size else None
