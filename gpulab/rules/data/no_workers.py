"""A rule about data loading in the main process."""

from __future__ import annotations

from dataclasses import replace

from gpulab.analysis.data.loader import LoadingCost
from gpulab.replay.worker_count_model import WorkersPrediction, predict_workers, recommended_workers, workers_to_keep_up
from gpulab.rules.data.late_batches import LateBatchCause, cause_of_late_batches
from gpulab.rules.data.loader_code import change_loader
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, Finding, Gain, known_numbers
from gpulab.rules.engine.phrases import duration_in_step, idle_share, range_over_steps
from gpulab.run import count_from_fact
from gpulab.wording import count, duration, number, percent

_CPU_BOUND_FRAC = 0.7  # a fetch with more CPU time than this computes; with less than 0.3 it waits


def no_workers(evidence: Evidence) -> Finding | None:
    """There are no DataLoader workers: the main process loads the data while the model waits.

    Proof: the main thread runs `_SingleProcessDataLoaderIter.__next__`, which only `num_workers=0` uses, while the
    device is idle. Time in which the GPU still has queued work does not count.

    Confused with: slow preprocessing in the loop itself, outside the DataLoader (`host_python`); reads that wait for
    storage (`slow_storage`); samples that need so much CPU time that no core is left for a worker
    (`cpu_bound_loading`).

    What to do: set `num_workers` of the DataLoader. If loading a sample is CPU-bound, each worker needs its own core;
    if it waits for storage or the network, workers can share a core.
    """
    loading = evidence.loading
    if loading is None or cause_of_late_batches(evidence) is not LateBatchCause.MAIN_PROCESS:
        return None
    share = evidence.ledger.typical_frac("loader")
    cores, threads = evidence.run.machine.cores_allowed, model_threads(evidence)
    workers = recommended_workers(loading, cores)
    prediction = predict_workers(loading, workers, cores, threads)
    rewrites = f"workers={workers}"
    change = change_loader(evidence, loading.loader, worker_arguments(workers, evidence.on_gpu))
    return Finding(
        ledger_parts=("loader",),
        claim=f"{idle_share(evidence, share)}: num_workers=0 loads batches in the main process.",
        evidence=(loader_time_text(evidence, loading), *_fetch_cpu_share(loading)),
        numbers=loader_numbers(loading, share),
        fix=change.code,
        advice=change.advice or _notebook_advice(loading),
        gain=workers_gain(evidence, rewrites, loading, prediction),
        rewrites=evidence.applicable_rewrites(rewrites),
        confidence=CERTAIN,
        spans=evidence.ledger.spans["loader"],
        caveats=_caveats(prediction, cores, threads),
    )


def model_threads(evidence: Evidence) -> int | None:
    """Return the number of threads the model computes on; None on a GPU."""
    return None if evidence.on_gpu else count_from_fact(evidence.run, "threads")


def _queue_gain(loading: LoadingCost, prediction: WorkersPrediction) -> Gain:
    """Return the gain that the worker queue model predicts."""
    return Gain(
        step_ns=loading.step_ns,
        best_ns=prediction.best_ns,
        worst_ns=prediction.worst_ns,
        floor_ns=prediction.floor_ns,
        basis=f"a queue of {prediction.workers} workers; the limit would be {prediction.limit}",
        floor_assumes="free data loading",
    )


def workers_gain(evidence: Evidence, rewrites: str, loading: LoadingCost, prediction: WorkersPrediction) -> Gain:
    """Return the replayed gain of this many workers, or the queue model's bound if the replay is not reliable."""
    gain = evidence.gain_of_named_rewrites(rewrites, _queue_gain(loading, prediction))
    if evidence.scene.quality.refusal_reason is None:
        return gain
    best_ns = min(gain.step_ns, max(gain.best_ns, prediction.best_ns))
    return replace(gain, best_ns=best_ns, worst_ns=max(best_ns, gain.worst_ns))


def loader_time_text(evidence: Evidence, loading: LoadingCost) -> str:
    """Return the time of the main thread inside the DataLoader, and how much of it the device waited."""
    exposed_ns, steps = evidence.ledger.median_ns("loader"), range_over_steps(evidence, "loader")
    if not evidence.on_gpu:  # the model waits for all of it
        return f"{duration_in_step(evidence, exposed_ns)} in next() of the DataLoader iterator ({steps})."
    inside = duration_in_step(evidence, loading.traced_fetch_ns)
    idle = f"{duration(exposed_ns)} of it with the GPU idle ({steps})"
    return f"{inside} in next() of the DataLoader iterator; {idle}."


def _fetch_cpu_share(loading: LoadingCost) -> tuple[str, ...]:
    """Return whether loading a batch computes or waits, if that was measured."""
    frac = loading.cpu_frac
    if frac is None:
        return ()
    if frac >= _CPU_BOUND_FRAC:
        kind = "loading computes, so each worker needs a core"
    elif frac <= 1 - _CPU_BOUND_FRAC:
        kind = "loading waits for storage or network, so several workers can share a core"
    else:
        kind = "loading partly computes and partly waits"
    return (f"{percent(frac)} of that time is CPU time of the main thread: {kind}.",)


def worker_arguments(workers: int, on_gpu: bool) -> dict[str, object]:
    """Return the DataLoader arguments for this many workers."""
    pinned: dict[str, object] = {"pin_memory": True} if on_gpu else {}
    return {"num_workers": workers, **pinned, "persistent_workers": True}


def _notebook_advice(loading: LoadingCost) -> str:
    name = loading.loader.dataset if loading.loader and loading.loader.dataset else "the dataset class"
    return (
        f"Worker processes must be able to import {name}: on macOS, on Windows, and with Python 3.14 or later, "
        "put it in a .py file, not in the notebook."
    )


def _caveats(prediction: WorkersPrediction, cores: float | None, threads: int | None) -> tuple[str, ...]:
    caveats = []
    if prediction.limit == "the cores":
        caveats.append(
            f"The {number(cores)} available cores limit the gain: a batch costs the same CPU time in a worker."
        )
    if prediction.crowded:
        caveats.append(
            f"The model computes on {threads} threads, which compete with workers: also try torch.set_num_threads(1)."
        )
    if cores is not None and prediction.workers > cores and not prediction.crowded:
        caveats.append(
            f"PyTorch will warn that {count(prediction.workers, 'worker')} exceed {count(cores, 'core')}. "
            "Ignore it here: workers that wait for I/O can share a core."
        )
    return tuple(caveats)


def loader_numbers(loading: LoadingCost, share: float) -> dict[str, float]:
    """Return the figures of a finding about data loading."""
    return known_numbers(
        exposed_frac=share,
        fetch_ns=loading.fetch_ns,
        exposed_ns=loading.exposed_ns,
        fetch_cpu_ns=loading.fetch_cpu_ns,
        worker_cpu_ns=loading.worker_cpu_ns,
        workers=loading.workers,
        needed_workers=workers_to_keep_up(loading) if loading.workers else None,
        blocked_frac=loading.blocked_frac,
    )
