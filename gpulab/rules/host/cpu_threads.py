"""A rule about CPU oversubscription: more threads than cores."""

from __future__ import annotations

from gpulab.analysis.host.cpu_contention import BlasUse, Contention, blas_use, contention
from gpulab.analysis.host.intra_op_threads import intra_op_time_ns
from gpulab.rules.data.late_batches import LateBatchCause, cause_of_late_batches
from gpulab.rules.data.loader_code import change_loader
from gpulab.rules.data.no_workers import loader_numbers, loader_time_text
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, SUSPECT, Finding, Gain, known_numbers
from gpulab.rules.engine.pasted_names import with_names_for_code
from gpulab.rules.engine.phrases import OTHER_THREADS, idle_share, sentences, step_or_recording
from gpulab.run import Loader
from gpulab.wording import count, duration, number, percent, plural

# Preemptions per CPU second, measured: threads with a core each, 25 on a quiet machine and 300 to 400 next to eight
# other programs; two or more threads per core, 700 to 1500 on either.
_MIN_PREEMPTIONS_PER_CPU_S = 550
_MIN_THROTTLED_FRAC = 0.05  # of one core's time: the quota stops threads about once a second
# Fraction of the excess time that goes away; 0.6 to 1.13 was measured for convolutions on two cores.
_REALISED = (0.4, 1.15)
_MIN_BLAS_CORES = 0.2  # that the threads of BLAS use together
_MIN_DELAYED_FRAC = (
    0.05  # of the loop: in 22 loops without workers and such threads, 0 to 0.02; beside them, 0.09 to 0.27
)
_SHARED_CORE = 2.0  # times the time that a thread runs if it shares its core with another
_SAVED = (1 / 3, 5 / 6)  # of the time beside a spinning thread of BLAS
_LARGEST_SAVED = 0.99  # of a step: no bound is larger
_MUCH_FASTER = 1.25  # at worst: other findings would then save another amount without these threads
_MAX_THREADS_PER_CORE = 8  # the measurements end here


def cpu_oversubscription(evidence: Evidence) -> Finding | None:
    """More threads want to run than there are cores: they preempt each other and wait for each other in every operator.

    Proof: PyTorch computes on more threads than this process may use cores, and they are preempted hundreds of times
    per second of CPU time; or the container's CPU quota throttles them; or batches are late, the cores are full, and
    each worker computes on several threads; or the main thread waits for a core, and threads of NumPy's BLAS, which
    spin after each product of matrices, use a good part of one, beside threads of PyTorch for every core. A few
    products after the recorded code show which threads these are, and for how long they spin.

    Confused with: operators that are simply expensive; another busy process, where the number of threads is right;
    large products of NumPy, during which PyTorch computes nothing.

    What to do: as many threads as cores in the main process, one thread in each worker, and one thread for BLAS if
    NumPy computes between the steps.
    """
    cpu = evidence.cached(contention)
    if cpu is None:
        return None
    if cause_of_late_batches(evidence) is LateBatchCause.THREADS:
        return _worker_finding(evidence, cpu)
    if cpu.threads is None:
        return None
    if cpu.threads <= cpu.cores:
        return _blas_finding(evidence, cpu, cpu.threads)
    if not _is_preempted(cpu) and (cpu.throttled_frac or 0) < _MIN_THROTTLED_FRAC:
        return None
    return _main_process_finding(evidence, cpu, cpu.threads)


def _is_preempted(cpu: Contention) -> bool:
    return (cpu.preempted_per_cpu_s or 0) >= _MIN_PREEMPTIONS_PER_CPU_S


def _main_process_finding(evidence: Evidence, cpu: Contention, threads: int) -> Finding:
    threads_for_cores = max(1, int(cpu.cores))
    preempted = _is_preempted(cpu)
    parallel_ns = None if evidence.on_gpu else evidence.cached(intra_op_time_ns)
    return Finding(
        ledger_parts=("compute",) if parallel_ns else (),
        claim=f"PyTorch computes on {threads} threads, but there {_cores(cpu.cores)}: the threads preempt each other.",
        evidence=_preemption_evidence(evidence, cpu, parallel_ns),
        numbers=_numbers(cpu),
        fix=f"import torch\n\ntorch.set_num_threads({threads_for_cores})  # once, before training",
        advice=f"If the environment sets the number, use OMP_NUM_THREADS={threads_for_cores} before Python starts.",
        # The cost of a CPU quota was not measured, so nothing is predicted for it.
        gain=_gain(evidence, cpu, threads, parallel_ns) if parallel_ns and preempted else None,
        confidence=CERTAIN if preempted else LIKELY,
        caveats=(OTHER_THREADS,),
    )


def _blas_finding(evidence: Evidence, cpu: Contention, threads: int) -> Finding | None:
    """Return the finding for threads of NumPy's BLAS that spin on the cores on which PyTorch computes."""
    blas, delayed = blas_use(evidence.run), cpu.main_delayed_frac
    if evidence.on_gpu or blas is None or delayed is None or delayed < _MIN_DELAYED_FRAC:
        return None
    if blas.cores < _MIN_BLAS_CORES or threads + blas.threads <= cpu.cores:
        return None
    gain = _gain_without_spinning(evidence, _wanting_range(blas, cpu, threads))
    return Finding(
        claim=f"{count(blas.threads, 'thread')} of NumPy's BLAS {plural(blas.threads, 'takes', 'take')} cores from "
        f"PyTorch: {plural(blas.threads, 'it uses', 'they use')} {number(blas.cores, 2)} of {number(cpu.cores)} cores.",
        evidence=(
            f"After a product of matrices, such a thread spins for {duration(blas.spin_ns)} before it sleeps (measured "
            "after the recorded code).",
            f"PyTorch computes on {count(threads, 'thread')}, and there {_cores(cpu.cores)}.",
            f"The main thread was ready to run, but had no core, for {percent(delayed)} of the loop.",
        ),
        numbers=known_numbers(
            blas_threads=blas.threads,
            blas_cores=blas.cores,
            spin_ns=blas.spin_ns,
            cores=cpu.cores,
            main_delayed_frac=delayed,
        ),
        fix="import numpy  # the limit holds for libraries that are loaded\n"
        "import threadpoolctl  # pip install threadpoolctl\n\n"
        'threadpoolctl.threadpool_limits(1, user_api="blas")  # once, before training',
        advice="Or start Python with OPENBLAS_NUM_THREADS=1. Large products of NumPy then run on one thread, too: "
        "measure it.",
        gain=gain,
        confidence=SUSPECT if any(loader.workers for loader in evidence.run.loaders) else LIKELY,
        distorts_others=gain.worst_speedup >= _MUCH_FASTER,
    )


def _wanting_range(blas: BlasUse, cpu: Contention, threads: int) -> tuple[float, float]:
    """Return the least and the largest share of the time, 0-1, in which a thread of BLAS wants to run.

    Such a thread shares all cores with those of PyTorch, or one core with one of them.
    """
    ran = blas.cores / blas.threads
    return min(1.0, ran * (threads + blas.threads) / cpu.cores), min(1.0, _SHARED_CORE * ran)


def _gain_without_spinning(evidence: Evidence, wanting_range: tuple[float, float]) -> Gain:
    """Return the gain of a step beside which no thread of BLAS spins.

    At worst, these threads do their work in all of the step's time outside operators, where they do no harm. At best,
    they harm all of the step: products of NumPy, too, wait for a thread that has no core. In five loops on two cores,
    steps beside a spinning thread took 3 to 5 times as long as without it.
    """
    least = max(0.0, wanting_range[0] - (1 - evidence.part_share("compute", "dispatch")))
    most = max(wanting_range)
    worst_ns, best_ns, floor_ns = (
        max(1, round(evidence.step_ns * (1 - saved)))
        for saved in (_SAVED[0] * least, _SAVED[1] * most, min(_LARGEST_SAVED, most))
    )
    return Gain(
        step_ns=evidence.step_ns,
        best_ns=best_ns,
        worst_ns=worst_ns,
        floor_ns=floor_ns,
        basis="the CPU time of these threads, and how much longer steps took beside them in loops on two cores",
        floor_assumes="nothing done while these threads want a core",
    )


def _worker_finding(evidence: Evidence, cpu: Contention) -> Finding | None:
    loading = evidence.loading
    if loading is None:
        return None
    share = evidence.part_share("loader")
    workers, threads = loading.workers or 1, cpu.worker_threads or 1
    change = change_loader(evidence, loading.loader, _same_workers(workers))
    return Finding(
        ledger_parts=("loader",),
        claim=f"{idle_share(evidence, share)}: {count(workers, 'worker')} {plural(workers, 'computes', 'compute')} on "
        f"up to {threads} threads each, but there {_cores(cpu.cores)}.",
        evidence=(loader_time_text(evidence, loading), *_preemption_evidence(evidence, cpu, None)),
        numbers={**loader_numbers(loading, share), **_numbers(cpu)},
        fix=f"{_one_thread(loading.loader)}\n\n{change.code}".strip(),
        advice=sentences(
            change.advice,
            "Call your own worker_init_fn in one_thread." if not change.code and _initialises(loading.loader) else "",
            "Libraries start their own threads: install threadpoolctl to limit NumPy's, and for OpenCV call "
            "cv2.setNumThreads(0) in one_thread.",
        ),
        gain=evidence.gain_of_removing(
            evidence.typical_step.sum_ns("loader"),
            "removing 10 to 70 % of the wait for data",
            "data loading at no cost",
            (0.1, 0.7),
            evidence.ledger.spans["loader"],
        ),
        confidence=SUSPECT,
        confidence_reason="how many threads of a worker compute at a time was not measured",
        spans=evidence.ledger.spans["loader"],
    )


def _same_workers(workers: int) -> dict[str, object]:
    return {"num_workers": workers, "worker_init_fn": "one_thread"}


def _initialises(setup: Loader | None) -> bool:
    """Whether the user's DataLoader has a worker_init_fn, which may seed the workers or split the samples."""
    return setup is not None and "worker_init_fn" in setup.other_settings


def _one_thread(setup: Loader | None) -> str:
    """Return a function for worker_init_fn; it calls the user's own, if the DataLoader has one."""
    name = with_names_for_code(setup).name if setup is not None and _initialises(setup) else None
    return (
        "import torch\n\n"
        f"def one_thread(worker_id{f', first={name}.worker_init_fn' if name else ''}):\n"
        f"{'    first(worker_id)' + chr(10) if name else ''}"
        "    torch.set_num_threads(1)\n"
        "    try:\n"
        "        import threadpoolctl\n"
        "    except ImportError:\n"
        "        return\n"
        "    threadpoolctl.threadpool_limits(1)"
    )


def _gain(evidence: Evidence, cpu: Contention, threads: int, parallel_ns: int) -> Gain:
    """Return the gain of fewer threads: n threads on c cores take up to n / c times as long per operator."""
    computing_ns = min(evidence.unprofiled_ns(parallel_ns), evidence.step_ns - 1)
    excess_ns = computing_ns * (1 - max(cpu.cores / threads, 1 / _MAX_THREADS_PER_CORE))
    floor_ns = max(1, evidence.step_ns - computing_ns)
    worst_ns, best_ns = (max(floor_ns, round(evidence.step_ns - realised * excess_ns)) for realised in _REALISED)
    return Gain(
        step_ns=evidence.step_ns,
        best_ns=best_ns,
        worst_ns=worst_ns,
        floor_ns=floor_ns,
        basis=f"operators with {threads} threads on {number(cpu.cores)} cores, as measured on another machine",
        floor_assumes="operators that take no time",
    )


def _cores(cores: float) -> str:
    return plural(cores, "is", "are") + " " + count(cores, "core")


def _preemption_evidence(evidence: Evidence, cpu: Contention, parallel_ns: int | None) -> tuple[str, ...]:
    sentences = []
    if parallel_ns:
        sentences.append(
            f"{percent(evidence.step_share(parallel_ns))} {step_or_recording(evidence)} ({duration(parallel_ns)}) is "
            "in "
            "operators that use all these threads."
        )
    if cpu.preempted_per_cpu_s is not None:
        sentences.append(f"Threads were preempted {number(cpu.preempted_per_cpu_s, 2)} times per second of CPU time.")
    if cpu.throttled_frac:
        sentences.append(
            f"The container's CPU quota throttled threads for {duration(1e9 * cpu.throttled_frac)} of every second, "
            "summed over cores."
        )
    if cpu.cores_frac is not None:
        sentences.append(f"The cores were {percent(cpu.cores_frac)} busy.")
    return tuple(sentences)


def _numbers(cpu: Contention) -> dict[str, float]:
    return known_numbers(
        threads=cpu.threads,
        cores=cpu.cores,
        worker_threads=cpu.worker_threads,
        preempted_per_cpu_s=cpu.preempted_per_cpu_s,
        throttled_frac=cpu.throttled_frac,
    )
