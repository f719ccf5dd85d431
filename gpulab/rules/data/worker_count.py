"""Rules about the number of DataLoader workers: too few, or too many."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from gpulab.analysis.data.loader import LoadingCost
from gpulab.analysis.data.workers import longest_first_batch_ns, worker_activity
from gpulab.replay.worker_count_model import MAX_WORKERS, batch_time_ns, predict_workers, workers_to_keep_up
from gpulab.rules.data.item_cost import CHEAPER_SAMPLES_ADVICE, SHORTER_WAITS_ADVICE
from gpulab.rules.data.late_batches import WAITING_FRAC, LateBatchCause, cause_of_late_batches
from gpulab.rules.data.loader_code import change_loader
from gpulab.rules.data.loading_remedies import Remedy, caching, with_remedy
from gpulab.rules.data.needless_workers import needless_workers, restarted_workers, slowing_workers
from gpulab.rules.data.no_workers import loader_numbers, loader_time_text
from gpulab.rules.data.worker_gain import model_threads, warning_caveat, worker_arguments, workers_gain
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, known_numbers
from gpulab.rules.engine.phrases import idle_share, sentences
from gpulab.wording import count, duration, percent

_IDLE_WORKER_FRAC = 0.05  # of a core: workers that use less need no core
_TOO_MANY_TIMES = 2  # times as many workers as the slowest batch needs
_MIN_WORKERS = 2  # one worker too many is not worth reporting


def too_few_workers(evidence: Evidence) -> Finding | None:
    """There are DataLoader workers, but too few: the main process still waits for batches.

    Proof: the main process waits in `_MultiProcessingDataLoaderIter.__next__`, and neither busy cores, the start of an
    epoch nor storage explains the wait. A worker needs c seconds per batch, and the model needs a batch every T
    seconds, so c / T workers are needed.

    Confused with: full cores, where more workers cannot help (`cpu_bound_loading`); workers blocked on storage
    (`slow_storage`); threads that saturate the cores (`cpu_oversubscription`).

    What to do: use as many workers as needed, if the cores can run them: a worker that computes needs a core, several
    that wait can share one. If the cores cannot run that many, make the samples cheaper: load them once and keep them,
    shrink them, or decode them on the GPU.
    """
    loading = evidence.loading
    if loading is None or cause_of_late_batches(evidence) is not LateBatchCause.TOO_FEW_WORKERS:
        return None
    share = evidence.part_share("loader")
    if not loading.workers:
        return _with_unknown_workers(evidence, loading, share)
    cores = evidence.run.machine.cores_allowed
    proposed = min(workers_to_keep_up(loading), _workers_for_cores(evidence, cores))
    can_add = proposed > loading.workers
    too_few = f"{loading.workers} worker{'s are' if loading.workers > 1 else ' is'} too few"
    remedy = _more_workers(evidence, loading, proposed) if can_add else caching(evidence, loading)
    more_advice = _advice(evidence, loading) if proposed < workers_to_keep_up(loading) else ""
    no_more = "" if can_add else f", but {_limit(evidence, loading, cores, proposed)} no more"
    finding = Finding(
        ledger_parts=("loader",),
        claim=f"{idle_share(evidence, share)}: {too_few}{no_more}; one worker needs about "
        f"{duration(batch_time_ns(loading), 2)} per batch, and the model could process a batch every "
        f"{duration(loading.rest_ns, 2)}.",
        evidence=(
            loader_time_text(evidence, loading),
            *_worker_cpu_time(loading),
            _against_cores(evidence, loading, cores, proposed),
        ),
        numbers=loader_numbers(loading, share) | known_numbers(proposed_workers=proposed if can_add else None),
        confidence=LIKELY,
        spans=evidence.ledger.spans["loader"],
    )
    return with_remedy(finding, replace(remedy, advice=sentences(remedy.advice, more_advice)))


def _more_workers(evidence: Evidence, loading: LoadingCost, proposed: int) -> Remedy:
    cores, rewrites = evidence.run.machine.cores_allowed, f"workers={proposed}"
    prediction = predict_workers(loading, proposed, cores, model_threads(evidence))
    change = change_loader(evidence, loading.loader, worker_arguments(proposed, evidence.on_gpu))
    return Remedy(
        fix=change.code,
        advice=change.advice,
        loader_settings=change.settings,
        function=change.function,
        gain=workers_gain(evidence, rewrites, loading, prediction),
        rewrites=evidence.applicable_rewrites(rewrites),
        caveats=tuple(filter(None, (warning_caveat(proposed, cores),))),
    )


def _advice(evidence: Evidence, loading: LoadingCost) -> str:
    """Return what makes a batch cheaper: less work, or shorter waits if the workers mostly wait."""
    computing = _worker_cpu_frac(evidence, loading)
    return SHORTER_WAITS_ADVICE if computing is not None and computing < WAITING_FRAC else CHEAPER_SAMPLES_ADVICE


def too_many_workers(evidence: Evidence) -> Finding | None:
    """There are more DataLoader workers than needed: each costs memory and start-up time.

    Proof: batches are not late, and fewer workers would do, or none: the main process takes long to receive batches
    that are ready, on a CPU that the model needs. Fewer would do if even the slowest batch, including the
    start of its worker, arrives within as many steps as half the workers would allow. Or the workers are restarted for
    every epoch, and that takes a good part of the loop. Or the model is slower beside its workers than near the end of
    an epoch, when they have nothing left to load, and the difference is more than the batches cost.

    Confused with: workers that sleep because they wait for a network, which are needed; an epoch that starts slowly
    because the files are not in the page cache.

    What to do: use fewer workers, and keep them alive between epochs (persistent_workers=True). If the model computes
    on the CPU and batches are cheap, load them in the main process (num_workers=0).
    """
    loading = evidence.loading
    cause = cause_of_late_batches(evidence)
    if loading is None or not loading.workers or cause not in (None, LateBatchCause.EPOCH_START):
        return None
    enough = _sufficient_workers(evidence, loading)
    proposed = min(loading.workers, max(_MIN_WORKERS, enough or loading.workers))
    restarted = restarted_workers(evidence, loading, proposed, _worker_evidence(evidence, loading, enough))
    if (finding := restarted or slowing_workers(evidence, loading)) is not None:
        return finding
    if loading.workers <= _MIN_WORKERS or enough is None or loading.workers < _TOO_MANY_TIMES * enough:
        return needless_workers(evidence, loading) if cause is None else None
    change = change_loader(evidence, loading.loader, worker_arguments(proposed, evidence.on_gpu))
    return Finding(
        ledger_parts=("loader",),
        claim=_too_many_claim(loading, proposed),
        evidence=_worker_evidence(evidence, loading, enough),
        numbers=loader_numbers(loading, evidence.part_share("loader")),
        fix=change.code,
        loader_settings=change.settings,
        function=change.function,
        advice=sentences(
            change.advice,
            "This costs memory, not speed: each worker is a process with its own copy of the dataset.",
        ),
        confidence=LIKELY,
        spans=evidence.ledger.spans["loader"],
        informs_only=True,
    )


def _with_unknown_workers(evidence: Evidence, loading: LoadingCost, share: float) -> Finding:
    """Return the finding for an imported trace, which holds neither the number of workers nor their activity."""
    exposed_ns = evidence.typical_step.sum_ns("loader")
    return Finding(
        ledger_parts=("loader",),
        claim=f"{idle_share(evidence, share)}: there are too few DataLoader workers, or they are blocked.",
        evidence=(loader_time_text(evidence, loading),),
        numbers=loader_numbers(loading, share),
        advice="Raise num_workers as long as the wait shrinks; profile the cell with %%gpuprofile to see what blocks "
        "the workers.",
        gain=evidence.gain_of_removing(
            exposed_ns,
            "removing 70 to 100 % of the wait for data",
            "data loading at no cost",
            spans=evidence.ledger.spans["loader"],
        ),
        confidence=LIKELY,
        spans=evidence.ledger.spans["loader"],
    )


def _worker_cpu_frac(evidence: Evidence, loading: LoadingCost) -> float | None:
    """Return the fraction of time in which a worker uses the CPU; None if unknown."""
    workers = evidence.cached(worker_activity)
    if workers is not None:
        return workers.busy_frac
    return None if loading.worker_cpu_ns is None else loading.worker_cpu_ns / batch_time_ns(loading)


def _workers_for_cores(evidence: Evidence, cores: float | None) -> int:
    """Return how many workers the cores can run: one per core if they compute, more if they wait."""
    if cores is None:
        return MAX_WORKERS
    per_core, computing = max(1, int(cores)), _worker_cpu_frac(evidence, evidence.loading) if evidence.loading else None
    if computing is None or computing >= WAITING_FRAC:
        return per_core
    return max(per_core, min(MAX_WORKERS, int(cores / max(computing, _IDLE_WORKER_FRAC))))


def _against_cores(evidence: Evidence, loading: LoadingCost, cores: float | None, proposed: int) -> str:
    """Return how many workers the batches need, and how many of them the cores can run."""
    required = workers_to_keep_up(loading)
    demand = (
        f"Judging by how often batches arrive, a worker needs about {duration(batch_time_ns(loading), 2)} per batch; "
        f"the rest of a step takes {duration(loading.rest_ns, 2)}. So {count(required, 'worker')} would"
    )
    if proposed >= required:
        return sentences(f"{demand} keep up.", _enough_cores(evidence, loading, cores))
    return f"{demand} be needed to keep up. {_core_limit(evidence, loading, cores, proposed)}"


def _enough_cores(evidence: Evidence, loading: LoadingCost, cores: float | None) -> str:
    """Say why the cores can run all workers that are needed; "" if their number is unknown."""
    if cores is None:
        return ""
    computing = _worker_cpu_frac(evidence, loading)
    if computing is None or computing >= WAITING_FRAC:
        return f"The {_cores_here(cores)} can run one worker each."
    return f"They can share the {_cores_here(cores)}, because each uses the CPU only {percent(computing)} of the time."


def _core_limit(evidence: Evidence, loading: LoadingCost, cores: float | None, proposed: int) -> str:
    """Say why fewer workers are proposed than needed."""
    if cores is None:
        return f"The number of cores is unknown, so gpulab proposes at most {MAX_WORKERS}."
    available, computing = _cores_here(cores), _worker_cpu_frac(evidence, loading)
    if computing is None:
        return f"The {available} can run {proposed}, if each worker needs a core."
    if computing >= WAITING_FRAC:
        return f"Workers compute, so the {available} can run only {'one' if cores < 2 else 'one each'}."
    if _is_capped(evidence, loading, cores, proposed):
        return (
            f"Workers mostly wait (each uses the CPU only {percent(computing)} of the time), so several can share a "
            f"core; gpulab proposes at most {proposed} here."
        )
    return f"Each uses the CPU {percent(computing)} of the time, so the {available} can run {proposed}."


def _is_capped(evidence: Evidence, loading: LoadingCost, cores: float | None, proposed: int) -> bool:
    """Whether gpulab's own limit, not the cores, keeps it from proposing more workers."""
    if cores is None:
        return True
    computing = _worker_cpu_frac(evidence, loading)
    return computing is not None and computing < WAITING_FRAC and proposed >= max(MAX_WORKERS, int(cores))


def _limit(evidence: Evidence, loading: LoadingCost, cores: float | None, proposed: int) -> str:
    """Return what limits the number of workers, before "no more"."""
    return "gpulab proposes" if _is_capped(evidence, loading, cores, proposed) else "the cores can run"


def _cores_here(cores: float) -> str:
    """Return the cores, after "the": "2 cores here", "core here"."""
    return f"{'core' if cores == 1 else count(cores, 'core')} here"


def _worker_cpu_time(loading: LoadingCost) -> tuple[str, ...]:
    if loading.worker_cpu_ns is None:
        return ()
    batch_ns = loading.worker_cpu_ns / loading.batches
    return (f"A worker uses {duration(batch_ns)} of CPU time per batch, in all of its threads together.",)


def _sufficient_workers(evidence: Evidence, loading: LoadingCost) -> int | None:
    """Return how many workers would keep up if every batch were as slow as the slowest first one; None if unknown."""
    first_ns = evidence.cached(longest_first_batch_ns)
    return None if first_ns is None else ceil(first_ns / loading.step_ns) + 1


def _too_many_claim(loading: LoadingCost, enough: int) -> str:
    return f"{loading.workers} DataLoader workers are too many; {enough} are enough."


def _worker_evidence(evidence: Evidence, loading: LoadingCost, enough: int | None) -> tuple[str, ...]:
    sentences = []
    first_ns, workers = evidence.cached(longest_first_batch_ns), evidence.cached(worker_activity)
    if first_ns is not None and enough is not None:
        sentences.append(
            f"The slowest first batch of an epoch took {duration(first_ns)}, including the start of the workers. "
            "With a "
            f"step of {duration(loading.step_ns)}, {count(enough, 'worker')} would keep up even with such batches."
        )
    if workers is not None:
        sentences.append(f"A worker uses the CPU {percent(workers.busy_frac)} of the time.")
    return tuple(sentences)
