"""A rule about cores that more threads want than there are."""

from __future__ import annotations

from dataclasses import replace

from gpulab.analysis.host.cpu_contention import Contention, contention
from gpulab.analysis.host.intra_op_threads import crowded_ns
from gpulab.rules.data.late_batches import Cause, why_late
from gpulab.rules.data.loader_code import rebuilt
from gpulab.rules.data.no_workers import loader_numbers, time_in_loader
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, SUSPECT, Finding, Gain, figures
from gpulab.rules.engine.phrases import idle_share, of_each_step
from gpulab.wording import count, duration, number, percent, plural

# Threads that have a core each lost it 25 times in a second of running on a quiet machine, and 300 to 400 times among
# eight other programs; two threads and more for each core lost it 700 to 1500 times on either.
PREEMPTED_PER_CPU_S = 550
THROTTLED_FRAC = 0.05  # of one core's time: held back by the quota every second or so
# What was measured on two cores, of the time by which the threads exceed them: 0.6 to 1.13 for convolutions.
REALISED = (0.4, 1.15)
MOST_TIMES = 8  # as many threads for each core as that was measured for


def cpu_oversubscription(evidence: Evidence) -> Finding | None:
    """More threads want to run than there are cores: they take turns, and wait for one another at every operator.

    Proof: PyTorch computes on more threads than this process may use cores, and they are taken off their cores many
    hundreds of times in a second of running; or the container's CPU quota holds it back; or batches are late, the
    cores are full, and each worker computes on several threads. Confused with: operators that simply are heavy; a
    busy neighbour, where the number of threads is right. What to do: as many threads as cores in the main process,
    one in each worker.
    """
    crowd = evidence.once(contention)
    if crowd is None:
        return None
    if why_late(evidence) is Cause.THREADS:
        return _in_workers(evidence, crowd)
    if crowd.threads is None or crowd.threads <= crowd.cores:
        return None
    if not _preempted(crowd) and (crowd.throttled_frac or 0) < THROTTLED_FRAC:
        return None
    return _in_the_model(evidence, crowd, crowd.threads)


def _preempted(crowd: Contention) -> bool:
    return (crowd.preempted_per_cpu_s or 0) >= PREEMPTED_PER_CPU_S


def _in_the_model(evidence: Evidence, crowd: Contention, threads: int) -> Finding:
    count = max(1, int(crowd.cores))
    preempted = _preempted(crowd)
    crowded = None if evidence.on_gpu else evidence.once(crowded_ns)
    return Finding(
        parts=("compute",) if crowded else (),
        claim=f"PyTorch computes on {threads} threads where there {_cores(crowd.cores)}: they take turns.",
        evidence=_crowding(evidence, crowd, crowded),
        numbers=_numbers(crowd),
        fix=f"import torch\n\ntorch.set_num_threads({count})  # once, before training",
        advice=f"Where the number comes from the environment, set OMP_NUM_THREADS={count} before Python starts.",
        # What a quota takes from bursts of threads was not measured: nothing is predicted for it.
        gain=_gain(evidence, crowd, threads, crowded) if crowded and preempted else None,
        confidence=CERTAIN if preempted else LIKELY,
    )


def _in_workers(evidence: Evidence, crowd: Contention) -> Finding | None:
    feeding = evidence.feeding
    if feeding is None:
        return None
    share = evidence.ledger.share("loader")
    workers, each = feeding.workers or 1, crowd.worker_threads or 1
    alone = replace(feeding.setup, workers=None) if feeding.setup else None
    return Finding(
        parts=("loader",),
        claim=f"{idle_share(evidence, share)}: {workers} workers may compute on {each} threads each where there "
        f"{_cores(crowd.cores)}: they take turns.",
        evidence=(time_in_loader(evidence, feeding), *_crowding(evidence, crowd, None)),
        numbers={**loader_numbers(feeding, share), **_numbers(crowd)},
        fix=_one_thread_each(rebuilt(evidence, alone, _same_workers(workers))),
        advice="Libraries that a worker uses have threads of their own: pip install threadpoolctl for NumPy's; for "
        "OpenCV call cv2.setNumThreads(0) in one_thread.",
        gain=evidence.bounded(
            evidence.plain_ns(evidence.ledger.median_ns("loader")),
            "the exposed wait, removed by 10 to 70 %",
            "even free data",
            (0.1, 0.7),
            evidence.ledger.spans["loader"],
        ),
        confidence=SUSPECT,
        why_confidence="how many of its threads compute at a time is not seen",
        shown_by=evidence.ledger.spans["loader"],
    )


def _same_workers(workers: int) -> dict[str, object]:
    return {"num_workers": workers, "worker_init_fn": "one_thread"}


def _one_thread_each(code: str) -> str:
    return (
        "import torch\n\n"
        "def one_thread(worker):\n"
        "    torch.set_num_threads(1)\n"
        "    try:\n"
        "        import threadpoolctl\n"
        "    except ImportError:\n"
        "        return\n"
        "    threadpoolctl.threadpool_limits(1)\n\n" + code
    )


def _gain(evidence: Evidence, crowd: Contention, threads: int, crowded: int) -> Gain:
    """Operators on n threads on c cores take up to n / c times as long; what of it comes back was measured."""
    computing_ns = min(evidence.plain_ns(crowded), evidence.step_ns - 1)
    excess_ns = computing_ns * (1 - max(crowd.cores / threads, 1 / MOST_TIMES))
    floor_ns = max(1, evidence.step_ns - computing_ns)
    worst_ns, best_ns = (max(floor_ns, round(evidence.step_ns - part * excess_ns)) for part in REALISED)
    return Gain(
        step_ns=evidence.step_ns,
        best_ns=best_ns,
        worst_ns=worst_ns,
        floor_ns=floor_ns,
        basis=f"operators that {threads} threads share {number(crowd.cores)} cores for, by what was measured elsewhere",
        floor_means="even operators that take no time",
    )


def _cores(cores: float) -> str:
    return plural(cores, "is", "are") + " " + count(cores, "core")


def _crowding(evidence: Evidence, crowd: Contention, crowded: int | None) -> tuple[str, ...]:
    told = []
    if crowded:
        told.append(
            f"{percent(evidence.step_share(crowded))} {of_each_step(evidence)} ({duration(crowded)}) is in operators "
            "that use all of these threads."
        )
    if crowd.preempted_per_cpu_s is not None:
        told.append(
            f"In a second of running, threads were taken off their cores {number(crowd.preempted_per_cpu_s, 2)} times."
        )
    if crowd.throttled_frac:
        told.append(
            f"The container's CPU quota held threads back for {duration(1e9 * crowd.throttled_frac)} in every second, "
            "all cores together."
        )
    if crowd.cores_frac is not None:
        told.append(f"The cores were {percent(crowd.cores_frac)} busy.")
    return tuple(told)


def _numbers(crowd: Contention) -> dict[str, float]:
    return figures(
        threads=crowd.threads,
        cores=crowd.cores,
        worker_threads=crowd.worker_threads,
        preempted_per_cpu_s=crowd.preempted_per_cpu_s,
        throttled_frac=crowd.throttled_frac,
    )
