"""Rules about the cost of loading samples: waits for storage, and CPU time."""

from __future__ import annotations

from gpulab.analysis.data.loader import LoadingCost
from gpulab.analysis.data.workers import worker_activity
from gpulab.analysis.host.cpu_contention import contention
from gpulab.analysis.host.other_programs import shared_cores_used_by_others
from gpulab.replay.worker_count_model import cpu_time_per_step_ns
from gpulab.rules.data.late_batches import BLOCKED_FRAC, FULL_FRAC, WAITING_FRAC, LateBatchCause, cause_of_late_batches
from gpulab.rules.data.loading_remedies import (
    caching,
    decoding_advice,
    freed_gain,
    whole_batches,
)
from gpulab.rules.data.needless_workers import crowding_samples
from gpulab.rules.data.no_workers import loader_numbers, loader_time_text
from gpulab.rules.engine.busiest_function import loader_line_text
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding
from gpulab.rules.engine.phrases import idle_share, sentences
from gpulab.wording import count, duration, metric, number, percent

CHEAPER_SAMPLES_ADVICE = (
    "Make each sample cheaper: precompute what does not change (decoding, resizing) and leave only random augmentation "
    "to the workers; store images at the size you need; vectorise the rest, or run it on the GPU."
)
SHORTER_WAITS_ADVICE = (
    "Make each read wait less: copy the files to a local disk, cache what is read more than once, or pack many small "
    "files into a few large ones."
)
_NOT_LATE = (None, LateBatchCause.EPOCH_START)
_MIN_OTHERS_CORES = 0.5  # with fewer cores in use by other programs, data loading is limited by its own work


def slow_storage(evidence: Evidence) -> Finding | None:
    """Batches are late because data loading waits for storage: a disk or a network file system.

    Proof: the workers are in state D (waiting for a read) in at least a third of the samples. Without workers: the main
    thread uses little CPU in `__next__` while a core is idle with an outstanding read. Or the files are on a network
    file system and the workers use little CPU.

    Confused with: cold files, which only the first epoch pays for; samples that wait for something else, such as a web
    service, or simply too few workers (`too_few_workers`).

    What to do: keep the samples in memory, or copy the files to a local disk or /dev/shm; read few large files instead
    of many small ones.
    """
    loading = evidence.loading
    if loading is None or cause_of_late_batches(evidence) is not LateBatchCause.STORAGE:
        return None
    share = evidence.part_share("loader")
    waiting = "the DataLoader workers wait" if loading.workers else "the main process waits"
    kind = loading.loader.location if loading.loader else None
    storage = f"storage ({kind})" if kind else "storage"
    blocked, cached = (loading.blocked_frac or 0) > BLOCKED_FRAC, caching(evidence, loading)
    return Finding(
        ledger_parts=("loader",),
        claim=f"{idle_share(evidence, share)}: {waiting} for {storage}.",
        evidence=(loader_time_text(evidence, loading), *_waits(evidence, loading)),
        numbers=loader_numbers(loading, share),
        fix=cached.fix,
        function=cached.function,
        advice="If the data does not fit in memory, copy it to a local disk or /dev/shm before training, and pack "
        "small files into few large ones. More workers help until the storage is saturated. In the first epoch after a "
        "reboot all files are cold: if the second epoch is fast, nothing is wrong.",
        gain=freed_gain(evidence, loading, "faster reads, which remove 50 to 100 % of the wait for data", 0.5),
        confidence=LIKELY if blocked or not loading.workers else SUSPECT,
        spans=evidence.ledger.spans["loader"],
        caveats=cached.caveats,
    )


def cpu_bound_loading(evidence: Evidence) -> Finding | None:
    """Loading the samples takes more CPU time than the cores have; more workers cannot help.

    Proof: batches are late, and the workers compute rather than wait. CPU utilisation is near 100 %, or one batch plus
    one step needs more CPU time than the cores supply. If no batch is late, a model on the CPU may still be slower:
    beside workers that load, it takes at least a third longer than near the end of an epoch, when they are idle.

    Confused with: workers that wait (`slow_storage`, `too_few_workers`); too many threads on too few cores
    (`cpu_oversubscription`). If other programs use the cores, too, the finding says so and has low confidence: without
    them, the samples may be cheap enough.

    What to do: load each sample once and keep it in memory, decode at the size you need, vectorise, or move heavy
    transforms to the GPU.
    """
    loading, cause = evidence.loading, cause_of_late_batches(evidence)
    if loading is None or cause is not LateBatchCause.CPU_TIME:
        return crowding_samples(evidence, loading) if loading is not None and cause in _NOT_LATE else None
    share, cores = evidence.part_share("loader"), evidence.run.machine.cores_allowed
    at_once = None if loading.workers else whole_batches(evidence, loading)
    remedy = at_once or caching(evidence, loading)
    others = _cores_of_others(evidence)
    return Finding(
        ledger_parts=("loader",),
        claim=f"{idle_share(evidence, share)}: it is CPU-bound, and {_all_cores(cores)} busy{_shared(others, cores)}.",
        evidence=(
            loader_time_text(evidence, loading),
            *_cpu_of_a_batch(loading, cores),
            *(loader_line_text(evidence) if not loading.workers else ()),
        ),
        numbers=loader_numbers(loading, share),
        fix=remedy.fix,
        function=remedy.function,
        advice=at_once.advice
        if at_once
        else sentences(
            _cheaper_samples_advice(after_code=bool(remedy.fix)), "" if loading.workers else decoding_advice(evidence)
        ),
        gain=remedy.gain,
        confidence=SUSPECT if others else LIKELY,
        confidence_reason="data loading may be fast enough without the other programs" if others else "",
        spans=evidence.ledger.spans["loader"],
        caveats=remedy.caveats,
    )


def _cores_of_others(evidence: Evidence) -> float | None:
    """Return how many cores other programs use; None if unknown, or too few to make a difference."""
    others = shared_cores_used_by_others(evidence.run, evidence.steps)
    return others if others is not None and others >= _MIN_OTHERS_CORES else None


def _shared(others: float | None, cores: float | None) -> str:
    if others is None or cores is None:
        return ""
    return f", but other programs use {number(others, 2)} of {count(int(cores), 'core')}"


def _all_cores(cores: float | None) -> str:
    if cores is None or cores == 1:
        return "all cores are" if cores is None else "the only core is"
    return "both cores are" if cores == 2 else f"all {count(cores, 'core')} are"


def _cheaper_samples_advice(*, after_code: bool) -> str:
    """Return how to make samples cheaper; as the alternative with workers, after code that needs none."""
    if not after_code:
        return f"More workers cannot help. {CHEAPER_SAMPLES_ADVICE}"
    return (
        f"Or keep the workers and {CHEAPER_SAMPLES_ADVICE[:1].lower()}{CHEAPER_SAMPLES_ADVICE[1:]} More workers cannot "
        "help."
    )


def _waits(evidence: Evidence, loading: LoadingCost) -> tuple[str, ...]:
    """Return the evidence that data loading waits for storage, and the read rate."""
    sentences = []
    workers, cpu = evidence.cached(worker_activity), evidence.cached(contention)
    if loading.workers and loading.blocked_frac is not None:
        sentences.append(f"Workers were waiting for a read in {percent(loading.blocked_frac)} of the samples.")
    if workers is not None and workers.read_bytes_per_s:
        sentences.append(f"Together they read {metric(workers.read_bytes_per_s, 'B/s')} from storage.")
    if workers is not None and workers.busy_frac < WAITING_FRAC:
        sentences.append(f"A worker uses the CPU {percent(workers.busy_frac)} of the time.")
    if not loading.workers and loading.cpu_frac is not None:
        sentences.append(f"The main thread uses the CPU {percent(loading.cpu_frac)} of that time.")
        if cpu is not None and cpu.read_bytes_per_s:
            sentences.append(f"It reads {metric(cpu.read_bytes_per_s, 'B/s')} from storage.")
        if cpu is not None and cpu.iowait_cores:
            sentences.append(f"On average {number(cpu.iowait_cores, 2)} cores were idle with an outstanding read.")
    return tuple(sentences)


def _cpu_of_a_batch(loading: LoadingCost, cores: float | None) -> tuple[str, ...]:
    sentences = []
    cpu_ns = loading.worker_cpu_ns if loading.workers else loading.fetch_cpu_ns
    if cpu_ns is not None:
        sentences.append(
            f"One batch takes {duration(cpu_ns / loading.batches)} of CPU time, over all threads that build it."
        )
    demand_ns = cpu_time_per_step_ns(loading)
    if demand_ns is not None and cores is not None:
        sentences.append(
            f"Loading and the rest of the step need {duration(demand_ns)} of CPU time; in one step, "
            f"{count(cores, 'core provides', 'cores provide')} {duration(cores * loading.step_ns)}."
        )
    if (
        loading.cores_frac is not None and loading.cores_frac >= FULL_FRAC
    ):  # below it, the CPU times above are the evidence
        sentences.append(f"The cores were {percent(loading.cores_frac)} busy while workers ran (median).")
    return tuple(sentences)
