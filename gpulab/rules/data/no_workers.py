"""Rules about feeding the model: a main process that builds the batches itself."""

from __future__ import annotations

from dataclasses import replace

from gpulab.analysis.data.loader import Feeding
from gpulab.replay.worker_queue import WorkersPrediction, needed, with_workers, worth_having
from gpulab.rules.data.late_batches import Cause, why_late
from gpulab.rules.data.loader_code import rebuilt
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, Finding, Gain, figures
from gpulab.rules.engine.phrases import duration_in_step, idle_share, range_over_steps
from gpulab.wording import duration, number, percent

CPU_BOUND_FRAC = 0.7  # more CPU time than this per fetch: it computes; less than 0.3: it waits


def no_workers(seen: Evidence) -> Finding | None:
    """The main process builds the batches itself, and the device waits meanwhile.

    Proof: `_SingleProcessDataLoaderIter.__next__` in the main thread, which only `num_workers=0` has, and the time
    inside it with the device idle. It is not reported where queued device work covers it. Confused with: slow
    preprocessing in the loop itself (`host_python`), which is outside the DataLoader; reads that storage holds up
    (`slow_storage`); and items that leave no core free for a worker (`cpu_bound_loading`). What to do: worker
    processes; how many can help is limited by the cores where an item costs CPU time, not where it waits.
    """
    feeding = seen.feeding
    if feeding is None or why_late(seen) is not Cause.MAIN:
        return None
    share = seen.ledger.share("loader")
    cores, threads = seen.run.machine.cores_allowed, model_threads(seen)
    workers = worth_having(feeding, cores)
    prediction = with_workers(feeding, workers, cores, threads)
    rewrites = f"workers={workers}"
    return Finding(
        parts=("loader",),
        claim=f"{idle_share(seen, share)}: the main process builds the batches (num_workers=0).",
        evidence=(time_in_loader(seen, feeding), *_what_it_costs(feeding)),
        numbers=loader_numbers(feeding, share),
        fix=rebuilt(seen, feeding.setup, worker_arguments(workers, seen.on_gpu)),
        advice=_notebook_advice(feeding),
        gain=predicted_for(seen, rewrites, feeding, prediction),
        rewrites=seen.typed(rewrites),
        confidence=CERTAIN,
        shown_by=seen.ledger.spans["loader"],
        caveats=_caveats(prediction, cores, threads),
    )


def model_threads(seen: Evidence) -> int | None:
    """On how many threads the model computes; None on a GPU, where it does not."""
    told = seen.run.facts.get("threads", "")
    return int(told) if told.isdigit() and not seen.on_gpu else None


def queue_gain(feeding: Feeding, prediction: WorkersPrediction) -> Gain:
    """What a queue of workers is predicted to give."""
    return Gain(
        step_ns=feeding.step_ns,
        best_ns=prediction.best_ns,
        worst_ns=prediction.worst_ns,
        floor_ns=prediction.floor_ns,
        basis=f"a queue of {prediction.workers} workers; {prediction.limit} would limit",
        floor_means="even free data",
    )


def predicted_for(seen: Evidence, rewrites: str, feeding: Feeding, prediction: WorkersPrediction) -> Gain:
    """The gain of this many workers: replayed, and where that cannot be, no better than as many of them can build."""
    gain = seen.predicted(rewrites, queue_gain(feeding, prediction))
    if seen.scene.quality.refusal is None:
        return gain
    best_ns = min(gain.step_ns, max(gain.best_ns, prediction.best_ns))
    return replace(gain, best_ns=best_ns, worst_ns=max(best_ns, gain.worst_ns))


def time_in_loader(seen: Evidence, feeding: Feeding) -> str:
    """How long the main thread was inside the DataLoader, and what of it the device waited for."""
    exposed_ns, steps = seen.ledger.median_ns("loader"), range_over_steps(seen, "loader")
    if not seen.on_gpu:  # the model waits for all of it
        return f"{duration_in_step(seen, exposed_ns)} in DataLoader.__next__ ({steps})."
    inside = duration_in_step(seen, feeding.traced_fetch_ns)
    return f"{inside} in DataLoader.__next__; {duration(exposed_ns)} of it with the GPU idle ({steps})."


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


def worker_arguments(workers: int, on_gpu: bool) -> dict[str, object]:
    """What to give a DataLoader so that this many workers feed the model."""
    pinned: dict[str, object] = {"pin_memory": True} if on_gpu else {}
    return {"num_workers": workers, **pinned, "persistent_workers": True}


def _notebook_advice(feeding: Feeding) -> str:
    name = feeding.setup.dataset if feeding.setup and feeding.setup.dataset else "the dataset class"
    return (
        f"Worker processes must be able to import {name}: on macOS, Windows and from Python 3.14 on, "
        "keep it in a .py file, not in the notebook."
    )


def _caveats(prediction: WorkersPrediction, cores: float | None, threads: int | None) -> tuple[str, ...]:
    told = []
    if prediction.limit == "the cores":
        told.append(
            f"The {number(cores)} cores allowed here limit the gain: a batch costs the same CPU time in a worker."
        )
    if prediction.crowded:
        told.append(
            f"The model computes on {threads} threads, which workers would hold up: try torch.set_num_threads(1) too."
        )
    if cores is not None and prediction.workers > cores and not prediction.crowded:
        told.append(f"PyTorch warns of more workers than {number(cores)} cores; for items that wait that is harmless.")
    return tuple(told)


def loader_numbers(feeding: Feeding, share: float) -> dict[str, float]:
    """The figures of a finding about feeding, as data."""
    return figures(
        exposed_frac=share,
        fetch_ns=feeding.fetch_ns,
        exposed_ns=feeding.exposed_ns,
        fetch_cpu_ns=feeding.fetch_cpu_ns,
        worker_cpu_ns=feeding.worker_cpu_ns,
        workers=feeding.workers,
        needed_workers=needed(feeding) if feeding.workers else None,
        blocked_frac=feeding.blocked_frac,
    )
