"""Rules about how many worker processes there are: too few to keep up, or more than help."""

from __future__ import annotations

from math import ceil

from gpulab.analysis.data.loader import Feeding
from gpulab.analysis.data.workers import Begun, begun, crew, slowest_first
from gpulab.replay.worker_queue import MOST_WORKERS, batch_ns, needed, with_workers
from gpulab.rules.data.item_cost import CHEAPER, cheaper, kept_in_memory, memory_caveat
from gpulab.rules.data.late_batches import WAITING_FRAC, Cause, why_late
from gpulab.rules.data.loader_code import rebuilt
from gpulab.rules.data.no_workers import loader_numbers, model_threads, predicted_for, time_in_loader, worker_arguments
from gpulab.rules.engine.evidence import Evidence, warmed_ns
from gpulab.rules.engine.finding import LIKELY, Finding, Gain, figures
from gpulab.rules.engine.phrases import idle_share
from gpulab.wording import count, duration, percent

FREE_WAIT_FRAC = 0.05  # of a core: workers that compute less than this are not counted against the cores
START_WORTH_FRAC = 0.05  # of the whole loop: as for a step
FAR_TOO_MANY = 2  # times as many workers as the slowest batch seen would need
FEW_ENOUGH = 2  # nobody needs to be told of one worker too many


def too_few_workers(evidence: Evidence) -> Finding | None:
    """There are workers, and the main process still waits for them: more of them would keep up.

    Proof: waits in `_MultiProcessingDataLoaderIter.__next__` of workers that are never idle. Each batch keeps a
    worker for c seconds, and the model wants one every T: so c / T workers are needed. Confused with: cores that are
    full, where more workers cannot help (`cpu_bound_loading`); workers blocked on storage (`slow_storage`); threads
    that fill the cores (`cpu_oversubscription`). What to do: as many workers as are needed, where the cores can carry
    them: one that computes needs a core, several that wait share one. What more would be needed, cheaper items must
    give: made once and kept, smaller, or decoded on the GPU.
    """
    feeding = evidence.feeding
    if feeding is None or why_late(evidence) is not Cause.FEW:
        return None
    share = evidence.ledger.share("loader")
    if not feeding.workers:
        return _unknown_number(evidence, feeding, share)
    cores = evidence.run.machine.cores_allowed
    wanted = min(needed(feeding), _carried(evidence, cores))
    more = wanted > feeding.workers
    prediction = with_workers(feeding, max(wanted, feeding.workers), cores, model_threads(evidence))
    rewrites = f"workers={wanted}" if more else ""
    many = f"{feeding.workers} worker{'s are' if feeding.workers > 1 else ' is'} too few"
    none_left = "" if more else ", and the cores carry no more"
    return Finding(
        parts=("loader",),
        claim=f"{idle_share(evidence, share)}: {many}{none_left}; a batch takes one of them "
        f"{duration(batch_ns(feeding))}, and the model could take one every {duration(feeding.rest_ns)}.",
        evidence=(
            time_in_loader(evidence, feeding),
            *_worker_cost(feeding),
            _against_cores(evidence, feeding, cores, wanted),
        ),
        numbers=loader_numbers(feeding, share) | figures(proposed_workers=wanted if more else None),
        fix=rebuilt(evidence, feeding.setup, worker_arguments(wanted, evidence.on_gpu))
        if more
        else kept_in_memory(evidence, feeding),
        advice=CHEAPER if wanted < needed(feeding) else "",
        gain=predicted_for(evidence, rewrites, feeding, prediction) if more else cheaper(evidence, feeding),
        rewrites=evidence.typed(rewrites),
        confidence=LIKELY,
        shown_by=evidence.ledger.spans["loader"],
        caveats=() if more else memory_caveat(feeding),
    )


def too_many_workers(evidence: Evidence) -> Finding | None:
    """There are more workers than help: each costs memory, and time to start.

    Proof: batches are not late, and fewer workers would do: even the slowest batch seen, start of the workers
    included, came within so many steps as half the workers would have had. Or workers are started anew for every
    epoch, and the time that takes is a good part of the loop. Confused with: workers that sleep because they wait for
    a network, which are needed; and an epoch that begins slowly because the files are cold. What to do: fewer workers,
    kept alive from one epoch to the next.
    """
    feeding = evidence.feeding
    if feeding is None or not feeding.workers or why_late(evidence) not in (None, Cause.START):
        return None
    enough = _enough(evidence, feeding)
    again = _restarts(evidence, feeding)
    idle = feeding.workers > FEW_ENOUGH and enough is not None and feeding.workers >= FAR_TOO_MANY * enough
    if again is None and not idle:
        return None
    wanted = min(feeding.workers, max(FEW_ENOUGH, enough or feeding.workers))
    return Finding(
        parts=("loader",),
        claim=_costs(feeding, again) if again else _too_many(feeding, wanted),
        evidence=_why_too_many(evidence, feeding, enough, again),
        numbers=loader_numbers(feeding, evidence.ledger.share("loader")),
        fix=rebuilt(evidence, feeding.setup, worker_arguments(wanted, evidence.on_gpu)),
        advice=""
        if again
        else "It costs memory, not speed: each worker is a process with its own copy of the dataset.",
        gain=_without_starts(again, feeding) if again else None,
        confidence=LIKELY,
        shown_by=again.spans if again else evidence.ledger.spans["loader"],
        aside=again is None,
    )


def _unknown_number(evidence: Evidence, feeding: Feeding, share: float) -> Finding:
    """A trace tells that there are workers and not how many, nor what they do."""
    exposed_ns = evidence.plain_ns(evidence.ledger.median_ns("loader"))
    return Finding(
        parts=("loader",),
        claim=f"{idle_share(evidence, share)}: the DataLoader's workers are late; too few, or held up.",
        evidence=(time_in_loader(evidence, feeding),),
        numbers=loader_numbers(feeding, share),
        advice="Raise num_workers while the wait shrinks; profile the cell with %%gpuprofile to learn what holds them "
        "up.",
        gain=evidence.bounded(
            exposed_ns,
            "the exposed wait, removed by 70 to 100 %",
            "even free data",
            spans=evidence.ledger.spans["loader"],
        ),
        confidence=LIKELY,
        shown_by=evidence.ledger.spans["loader"],
    )


def _computing(evidence: Evidence, feeding: Feeding) -> float | None:
    """Which part of its time a worker computes."""
    workers = evidence.once(crew)
    if workers is not None:
        return workers.busy_frac
    return None if feeding.worker_cpu_ns is None else feeding.worker_cpu_ns / batch_ns(feeding)


def _carried(evidence: Evidence, cores: float | None) -> int:
    """How many workers the cores carry: one each where they compute, more where they wait, but never a crowd."""
    if cores is None:
        return MOST_WORKERS
    mine, computing = max(1, int(cores)), _computing(evidence, evidence.feeding) if evidence.feeding else None
    if computing is None or computing >= WAITING_FRAC:
        return mine
    return max(mine, min(MOST_WORKERS, int(cores / max(computing, FREE_WAIT_FRAC))))


def _against_cores(evidence: Evidence, feeding: Feeding, cores: float | None, wanted: int) -> str:
    each, needs = f"{duration(batch_ns(feeding))} / {duration(feeding.rest_ns)}", needed(feeding)
    computing = _computing(evidence, feeding)
    here = "" if cores is None else f"the {count(cores, 'core')} here"
    if cores is None:
        why = f"how many cores there are is not known, and {wanted} can do no harm"
    elif computing is None:
        why = f"{here} are for {wanted} at most"
    elif computing < WAITING_FRAC:
        limit = "are no limit" if wanted >= needs else f"carry {wanted}"
        why = f"they mostly wait ({percent(computing)} computing), so {here} {limit}"
    else:
        why = f"they compute, so {here} are all they can use"
    if wanted >= needs:
        return f"{each}: {needs} workers would keep up{'' if cores is None else f'; {why}'}."
    return f"{each}: it would take {needs} workers to keep up; {why}."


def _worker_cost(feeding: Feeding) -> tuple[str, ...]:
    if feeding.worker_cpu_ns is None:
        return ()
    return (f"Of that, {duration(feeding.worker_cpu_ns)} of CPU time, all of a worker's threads together.",)


def _enough(evidence: Evidence, feeding: Feeding) -> int | None:
    """As many workers as would keep up if every batch took as long as the slowest first one; None: not told."""
    first_ns = evidence.once(slowest_first)
    return None if first_ns is None else ceil(first_ns / feeding.step_ns) + 1


def _restarts(evidence: Evidence, feeding: Feeding) -> Begun | None:
    """The beginnings of epochs, where workers are started anew in each and that is a good part of the loop."""
    if feeding.setup is None or feeding.setup.persistent_workers:
        return None
    found = evidence.once(begun)
    return found if found is not None and found.frac >= START_WORTH_FRAC else None


def _without_starts(found: Begun, feeding: Feeding) -> Gain:
    """Workers that start also take cores from the steps beside them: at best these are as fast as the fastest were."""
    left_ns = max(1, found.step_ns - round(found.frac * found.step_ns))
    floor_ns = min(left_ns, feeding.least_rest_ns or warmed_ns(left_ns, found.step_ns))
    return Gain(
        step_ns=found.step_ns,
        best_ns=floor_ns,
        worst_ns=(found.step_ns + left_ns) // 2,
        floor_ns=floor_ns,
        basis="the beginnings of later epochs, shortened by 50 to 100 %",
        floor_means="even a beginning that costs nothing",
        averaged=True,
    )


def _costs(feeding: Feeding, found: Begun) -> str:
    return (
        f"{percent(found.frac)} of the loop goes to starting {feeding.workers} workers anew for each epoch, "
        f"{duration(found.each_ns)} each time."
    )


def _too_many(feeding: Feeding, wanted: int) -> str:
    return f"{feeding.workers} workers are more than help: {wanted} would keep up as well."


def _why_too_many(evidence: Evidence, feeding: Feeding, enough: int | None, again: Begun | None) -> tuple[str, ...]:
    told = []
    first_ns, workers = evidence.once(slowest_first), evidence.once(crew)
    if first_ns is not None and enough is not None:
        told.append(
            f"The slowest first batch of an epoch came after {duration(first_ns)}, start of the workers included; "
            f"with a step of {duration(feeding.step_ns)}, {enough} workers would keep up even with batches like that."
        )
    if workers is not None:
        told.append(f"A worker computes {percent(workers.busy_frac)} of the time.")
    if again is not None:
        told.append(f"{count(again.count, 'epoch')} began so, after the first.")
    return tuple(told)
