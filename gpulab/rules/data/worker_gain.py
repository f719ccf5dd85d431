"""What a number of DataLoader workers gives: the replayed gain, the arguments, and the caveats."""

from __future__ import annotations

from dataclasses import replace

from gpulab.analysis.data.loader import LoadingCost
from gpulab.replay.graph.graph import CORE_LIMIT, WORKER_LIMIT
from gpulab.replay.rewrite import LOADING_BOUND
from gpulab.replay.worker_count_model import WorkersPrediction
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import Gain
from gpulab.run_facts import count_from_fact
from gpulab.wording import count, number

_NOTEBOOK = "__main__"  # the module of classes that a notebook or script defines


def model_threads(evidence: Evidence) -> int | None:
    """Return the number of threads the model computes on; None on a GPU."""
    return None if evidence.on_gpu else count_from_fact(evidence.run, "threads")


def workers_gain(evidence: Evidence, rewrites: str, loading: LoadingCost, prediction: WorkersPrediction) -> Gain:
    """Return the replayed gain of this many workers, or the queue model's bound if the replay is not reliable."""
    gain = evidence.gain_of_named_rewrites(rewrites, _queue_gain(loading, prediction, on_gpu=evidence.on_gpu))
    if evidence.scene.quality.refusal_reason is None:
        return gain
    best_ns = min(gain.step_ns, max(gain.best_ns, prediction.best_ns))
    return replace(gain, best_ns=best_ns, worst_ns=max(best_ns, gain.worst_ns))


def _queue_gain(loading: LoadingCost, prediction: WorkersPrediction, *, on_gpu: bool) -> Gain:
    """Return the gain that the worker queue model predicts."""
    return Gain(
        step_ns=loading.step_ns,
        best_ns=prediction.best_ns,
        worst_ns=prediction.worst_ns,
        floor_ns=prediction.floor_ns,
        limit=prediction.limit if prediction.limit in (WORKER_LIMIT, CORE_LIMIT) else None,
        basis=f"a model of a queue with {count(prediction.workers, 'worker')}; {prediction.limit} would be the limit",
        floor_assumes=LOADING_BOUND,
        cold_floor_ns=None if on_gpu else max(prediction.floor_ns, loading.rest_ns),
    )


def worker_arguments(workers: int, on_gpu: bool) -> dict[str, object]:
    """Return the DataLoader arguments for this many workers."""
    pinned: dict[str, object] = {"pin_memory": True} if on_gpu else {}
    return {"num_workers": workers, **pinned, "persistent_workers": True}


def importable_advice(loading: LoadingCost) -> str:
    """Return what a dataset in a notebook needs, so that workers can be started; "" if its class is in a module."""
    setup = loading.loader
    library = setup.dataset_library if setup else None
    if library not in (None, _NOTEBOOK, "torch"):  # a dataset of PyTorch may wrap one of the notebook
        return ""
    name = f" {setup.dataset}" if setup and setup.dataset and library != "torch" else ""
    return (
        f"On macOS, on Windows, and with Python 3.14 or later, each worker imports your dataset class{name}: define it "
        'in a .py file, not in a notebook. In a script, start training only if __name__ == "__main__".'
    )


def workers_caveats(prediction: WorkersPrediction, cores: float | None, threads: int | None) -> tuple[str, ...]:
    """Return what limits the gain of these workers."""
    caveats = []
    if prediction.limit == CORE_LIMIT:
        caveats.append(
            f"The {number(cores)} available cores limit the gain: a batch costs the same CPU time in a worker."
        )
    if prediction.crowded:
        caveats.append(
            f"The model computes on {threads} threads, which compete with workers: also try torch.set_num_threads(1)."
        )
    if warning := warning_caveat(prediction.workers, cores):
        caveats.append(warning)
    return tuple(caveats)


def warning_caveat(workers: int, cores: float | None) -> str:
    """Return the warning that PyTorch prints for more workers than cores, and that it does no harm; "" if it does not.

    More workers than cores are proposed only if they mostly wait.
    """
    if cores is None or workers <= cores:
        return ""
    processes = count(workers, "worker process", "worker processes")
    return (
        f'PyTorch may warn "This DataLoader will create {processes} in total", '
        f"because you have {count(cores, 'core')}. You can ignore it here: workers that mostly wait can share a core."
    )
