"""Rules about feeding the model: batches that come late."""

from __future__ import annotations

from math import ceil

from gpulab.analysis.loader import Feeding
from gpulab.replay.workers import WorkersPrediction, with_workers, worth_having
from gpulab.rules.evidence import Evidence
from gpulab.rules.finding import CERTAIN, LIKELY, Finding, Gain
from gpulab.rules.phrases import ms, of_a_step, percent, spread, who_waits

WORTH_TELLING_FRAC = 0.05  # as TensorBoard's plug-in; under a twentieth of a step no fix is worth a change
LATE_WORTH_FRAC = 0.10  # taking a ready batch from a worker costs 0.1-1.5 ms by itself; that is not lateness
CPU_BOUND_FRAC = 0.7  # more CPU time than this per fetch: it computes; less than 0.3: it waits
BLOCKED_FRAC = 0.3  # workers in state D in a third of the samples: storage holds them up
SATURATED_FRAC = 0.85  # a step that needs this much of all cores leaves no room for another worker
FULL_FRAC = 0.9  # the same by the load of all cores, whoever makes it


def starving(seen: Evidence) -> Finding | None:
    """The main process builds the batches itself, and the device waits meanwhile.

    Proof: `_SingleProcessDataLoaderIter.__next__` in the main thread, which only `num_workers=0` has, and the time
    inside it with the device idle. It is not reported where queued device work covers it. Confused with: slow
    preprocessing in the loop itself (`host_python`), which is outside the DataLoader. What to do: worker processes;
    how many can help is limited by the cores where an item costs CPU time, not where it waits.
    """
    feeding = seen.feeding
    if feeding is None or feeding.workers != 0:
        return None
    share = seen.ledger.share("loader")
    if share < WORTH_TELLING_FRAC:
        return None
    cores = seen.run.machine.cores_allowed
    workers = worth_having(feeding, cores)
    threads = int(told) if (told := seen.run.facts.get("threads")) and not seen.on_gpu else None
    prediction = with_workers(feeding, workers, cores, threads)
    confidence, why = seen.confidence(CERTAIN)
    return Finding(
        rule="starving",
        parts=("loader",),
        claim=f"{who_waits(seen, share)}: the main process builds the batches (num_workers=0).",
        evidence=(_time_in_loader(seen, feeding), *_what_it_costs(feeding)),
        numbers=_numbers(feeding, share),
        fix=_dataloader(feeding, workers, seen.on_gpu),
        advice=_notebook_advice(feeding),
        gain=_gain(feeding, prediction),
        confidence=confidence,
        why_confidence=why,
        shown_by=seen.ledger.spans["loader"],
        caveats=_caveats(prediction, cores, threads),
        lesson="05_data_loading",
    )


def few_workers(seen: Evidence) -> Finding | None:
    """There are workers, and the main process still waits for them.

    Proof: waits in `_MultiProcessingDataLoaderIter.__next__`. Which of its rivals it is, is told by the workers'
    CPU time: cores that are full (more workers cannot help), workers blocked on storage, or too few of them: each
    batch costs c seconds of a worker and one is wanted per step, so c / step workers are needed.
    """
    feeding = seen.feeding
    if feeding is None or feeding.workers == 0:
        return None
    share = seen.ledger.share("loader")
    if share < LATE_WORTH_FRAC:
        return None
    cause, fix, advice = _why_workers_are_late(seen, feeding)
    confidence, why = seen.confidence(LIKELY)
    count = f"num_workers={feeding.workers}" if feeding.workers else "with workers"
    exposed_ns = seen.ledger.median_ns("loader")
    return Finding(
        rule="few_workers",
        parts=("loader",),
        claim=f"{who_waits(seen, share)}: the DataLoader's workers are late ({count}; {cause}).",
        evidence=(_time_in_loader(seen, feeding), *_worker_cost(feeding)),
        numbers=_numbers(feeding, share),
        fix=fix,
        advice=advice,
        gain=seen.bounded(seen.plain_ns(exposed_ns), "the exposed wait, removed by 70 to 100 %", "even free data"),
        confidence=confidence,
        why_confidence=why,
        shown_by=seen.ledger.spans["loader"],
        lesson="05_data_loading",
    )


def _gain(feeding: Feeding, prediction: WorkersPrediction) -> Gain:
    return Gain(
        step_ns=feeding.step_ns,
        best_ns=prediction.best_ns,
        worst_ns=prediction.worst_ns,
        floor_ns=prediction.floor_ns,
        basis=f"a queue of {prediction.workers} workers; {prediction.limit} would limit",
        floor_means="even free data",
    )


def _time_in_loader(seen: Evidence, feeding: Feeding) -> str:
    exposed_ns, steps = seen.ledger.median_ns("loader"), spread(seen, "loader")
    if not seen.on_gpu:  # the model waits for all of it
        return f"{of_a_step(seen, exposed_ns)} in DataLoader.__next__ ({steps})."
    inside = of_a_step(seen, feeding.traced_fetch_ns)
    return f"{inside} in DataLoader.__next__; {ms(exposed_ns)} of it with the GPU idle ({steps})."


def _what_it_costs(feeding: Feeding) -> tuple[str, ...]:
    """Whether building a batch is work or waiting, where that was measured."""
    frac = feeding.cpu_frac
    if frac is None:
        return ()
    if frac >= CPU_BOUND_FRAC:
        kind = "it computes, so workers need cores of their own"
    elif frac <= 1 - CPU_BOUND_FRAC:
        kind = "it waits (storage or network), so workers need few cores"
    else:
        kind = "part computing, part waiting"
    return (f"{percent(frac)} of that time is CPU work of the main thread: {kind}.",)


def _worker_cost(feeding: Feeding) -> tuple[str, ...]:
    if feeding.worker_cpu_ns is None:
        return ()
    return (f"The workers spend {ms(feeding.worker_cpu_ns)} of CPU time on a batch, all together.",)


def _why_workers_are_late(seen: Evidence, feeding: Feeding) -> tuple[str, str, str]:
    """The cause in a few words, the fix as code, the advice."""
    cores, cpu_ns = seen.run.machine.cores_allowed, feeding.worker_cpu_ns
    if (feeding.blocked_frac or 0) > BLOCKED_FRAC:
        return (
            "they wait for storage",
            "",
            "Copy the data to a local disk or /dev/shm first, or pack small files into larger ones.",
        )
    if cores_are_full(feeding, cores):
        return (
            "all cores are busy" if cores is None else f"all {cores:g} cores are busy",
            "",
            "More workers cannot help. Make an item cheaper: decode at the size you need, do heavy transforms once "
            "and store the result, or move them to the GPU.",
        )
    if feeding.workers:
        # They were busy all the time and gave one batch a step; without the wait one is wanted every rest_ns.
        wanted = max(feeding.workers + 1, ceil(feeding.workers * feeding.step_ns / feeding.rest_ns))
        if cores is not None and cpu_ns is not None and cpu_ns > feeding.step_ns / 2:
            wanted = min(wanted, max(feeding.workers + 1, int(cores)))
        return "too few for one batch per step", _dataloader(feeding, wanted, seen.on_gpu), ""
    return (
        "too few, or held up",
        "",
        "Raise num_workers while the wait shrinks; profile the cell with %%gpuprofile to learn what holds them up.",
    )


def cores_are_full(feeding: Feeding, cores: float | None) -> bool:
    """Whether more workers would only take cores from those there are: by the load seen, or by what a step needs."""
    if (feeding.cores_frac or 0) >= FULL_FRAC:
        return True
    if cores is None or feeding.worker_cpu_ns is None:
        return False
    demand_ns = feeding.worker_cpu_ns + (feeding.rest_cpu_ns or 0)
    return demand_ns > SATURATED_FRAC * cores * feeding.step_ns


def _dataloader(feeding: Feeding, workers: int, on_gpu: bool) -> str:
    """The user's own DataLoader with the arguments that change."""
    setup = feeding.setup
    batch = f"batch_size={setup.batch_size}, " if setup and setup.batch_size else ""
    pin = "pin_memory=True, " if on_gpu else ""
    return f"DataLoader(..., {batch}num_workers={workers}, {pin}persistent_workers=True)"


def _notebook_advice(feeding: Feeding) -> str:
    name = feeding.setup.dataset if feeding.setup and feeding.setup.dataset else "the dataset class"
    return (
        f"Worker processes must be able to import {name}: on macOS, Windows and from Python 3.14 on, "
        "keep it in a .py file, not in the notebook."
    )


def _caveats(prediction: WorkersPrediction, cores: float | None, threads: int | None) -> tuple[str, ...]:
    told = []
    if prediction.limit == "the cores":
        told.append(f"The {cores:g} cores allowed here limit the gain: a batch costs the same CPU time in a worker.")
    if prediction.crowded:
        told.append(
            f"The model computes on {threads} threads, which workers would hold up: try torch.set_num_threads(1) too."
        )
    if cores is not None and prediction.workers > cores and not prediction.crowded:
        told.append(f"PyTorch warns of more workers than {cores:g} cores; for items that wait that is harmless.")
    return tuple(told)


def _numbers(feeding: Feeding, share: float) -> dict[str, float]:
    told = {
        "exposed_frac": share,
        "fetch_ns": feeding.fetch_ns,
        "exposed_ns": feeding.exposed_ns,
        "fetch_cpu_ns": feeding.fetch_cpu_ns,
        "worker_cpu_ns": feeding.worker_cpu_ns,
        "workers": feeding.workers,
    }
    return {name: float(value) for name, value in told.items() if value is not None}
