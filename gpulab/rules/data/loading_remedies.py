"""Remedies for data loading in the main process: worker processes, whole batches, cheaper or cached samples.

Workers are not always the answer: passing a batch to the main process has a price, and workers take cores from a model
that trains on the CPU. The remedy with the shortest step in the worst case is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from gpulab.analysis.data.loader import LoadingCost
from gpulab.replay.graph.graph import CORE_LIMIT
from gpulab.replay.worker_count_model import predict_workers, recommended_workers
from gpulab.rules.data.loader_code import CACHED_DATASET_CODE, change_loader, whole_batches_code
from gpulab.rules.data.worker_gain import (
    importable_advice,
    model_threads,
    worker_arguments,
    workers_caveats,
    workers_gain,
)
from gpulab.rules.engine.busiest_function import share_of_calls
from gpulab.rules.engine.evidence import Evidence, with_warm_caches_ns
from gpulab.rules.engine.finding import Finding, Gain, LoaderSettings
from gpulab.run import Loader
from gpulab.wording import percent, ratio

# One fetch with a list of indices from a TensorDataset: a constant, a cost per tensor and per index of each tensor, and
# the gathered bytes. Measured on a virtual machine with two cores (1 to 8 tensors, 16 to 512 samples, 64 bytes to
# 50 MB): 60 us, 20 us, 0.35 us and 8 GB/s. The ends are assumed: half and twice of that, and for cold memory 1 GB/s.
_FETCH_NS, _TENSOR_NS, _INDEX_NS = (30_000, 120_000), (10_000, 40_000), (175, 700)
_GATHERED_BYTES_PER_S = (8e9, 1e9)
_TENSORS = (1, 8)  # of a dataset, if the batch was not inspected
_NO_GAIN = 1.03  # a speed-up that nobody notices
_COMPETING = "they compete with the main process for cores"
_PASSING = "passing a batch from a worker to the main process may cost more than loading it"
_COMPUTING_FRAC = 0.5  # share of the fetch that is CPU time, from which cheaper samples are the better remedy
_LEAST_CHEAPER_FRAC = 0.3  # of the exposed wait: whole batches and vectorised samples gave 1.9x to 18x on five loops
_CHEAPER_ADVICE = (
    "Spend less CPU time per batch: load it in one array operation instead of sample by sample (define __getitems__ "
    "to return a whole batch, and a collate_fn that passes it on), and move what does not change to __init__."
)
# Functions that read the pixels of a file, so that they decode it; convert() does so if load() was not called before.
_DECODING_CALLS = r"PIL\.(ImageFile\.ImageFile\.load|Image\.Image\.(load|convert)|JpegImagePlugin\.)"
_MIN_DECODING_FRAC = 0.3  # of the time in the DataLoader
_UNCROWDED_FRAC = 0.7  # the model's CPU time without workers on its cores and caches, relative to the time with them
_FASTER_REST = "its fast end also assumes that the rest of the step runs faster without data loading beside it"
_MAX_CACHING_NS, _MAX_CACHED_BYTES = 10e9, 1e9  # of a trial that loads all samples first
_MAX_CACHED_ITEMS = 100_000  # caching more samples in memory is not proposed: at 150 kB each, these are 15 GB


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One way to remove a cause: what to do, and what it gives."""

    name: str = ""  # as an alternative to another remedy: "workers=4", "cached"
    adds_workers: bool = False
    gain: Gain
    fix: str = ""
    advice: str = ""
    loader_settings: LoaderSettings | None = None
    function: str | None = None
    rewrites: str = ""
    caveats: tuple[str, ...] = ()


def with_remedy(finding: Finding, remedy: Remedy, name: str = "") -> Finding:
    """Return the finding with this remedy; `name`: of one that is an alternative."""
    return replace(
        finding,
        alternative=name,
        fix=remedy.fix,
        advice=remedy.advice,
        loader_settings=remedy.loader_settings,
        function=remedy.function,
        gain=remedy.gain,
        rewrites=remedy.rewrites,
        caveats=remedy.caveats,
    )


def loading_remedy(evidence: Evidence, loading: LoadingCost) -> Remedy:
    """Return the remedy with the shortest step in the worst case; cheaper samples if workers may be a loss."""
    workers, at_once = _workers(evidence, loading), whole_batches(evidence, loading)
    if at_once is not None and at_once.gain.worst_ns <= workers.gain.worst_ns:
        return at_once
    if (loading.cpu_frac or 1.0) < _COMPUTING_FRAC:  # it waits, which workers can do at the same time
        return workers
    limited = _is_limited_by_cores(evidence, loading)
    cheaper = _cheaper_samples(evidence, loading, workers, limited)
    is_comparable = limited or not workers.gain.is_bound_only  # of a bound, the lower end is unknown
    is_better = workers.gain.may_lose or (is_comparable and cheaper.gain.worst_ns < workers.gain.worst_ns)
    return cheaper if is_better else workers


def loading_alternatives(evidence: Evidence, loading: LoadingCost, chosen: Remedy) -> tuple[Remedy, ...]:
    """Return the other remedies that may be code, for trials: which one is fastest depends on the samples."""
    workers = _workers(evidence, loading)
    others = () if workers == chosen else (workers,)
    return (*others, caching(evidence, loading)) if _can_cache(loading) else others


def _can_cache(loading: LoadingCost) -> bool:
    """Whether all samples can be loaded at the start of a trial, and fit in memory."""
    setup = loading.loader
    if setup is None or setup.batches is None or setup.batch_bytes is None or setup.dataset_library == "torch":
        return False
    loaded_ns = setup.batches * loading.fetch_ns / loading.batches
    return loaded_ns <= _MAX_CACHING_NS and setup.batches * setup.batch_bytes <= _MAX_CACHED_BYTES


def _is_limited_by_cores(evidence: Evidence, loading: LoadingCost) -> bool:
    """Whether the CPU time of a batch, rather than the number of workers, limits the step."""
    cores = evidence.run.machine.cores_allowed
    return predict_workers(loading, recommended_workers(loading, cores), cores).limit == CORE_LIMIT


def _workers(evidence: Evidence, loading: LoadingCost) -> Remedy:
    cores, threads = evidence.run.machine.cores_allowed, model_threads(evidence)
    number_of_workers = recommended_workers(loading, cores)
    prediction = predict_workers(loading, number_of_workers, cores, threads)
    rewrites = f"workers={number_of_workers}"
    change = change_loader(evidence, loading.loader, worker_arguments(number_of_workers, evidence.on_gpu))
    return Remedy(
        name=rewrites,
        adds_workers=True,
        fix=change.code,
        advice=change.advice or importable_advice(loading),
        loader_settings=change.settings,
        function=change.function,
        gain=workers_gain(evidence, rewrites, loading, prediction),
        rewrites=evidence.applicable_rewrites(rewrites),
        caveats=workers_caveats(prediction, cores, threads),
    )


def decoding_advice(evidence: Evidence) -> str:
    """Return how to decode images at less cost, if Pillow decodes them for much of the time; otherwise ""."""
    frac = share_of_calls(evidence, _DECODING_CALLS)
    if frac < _MIN_DECODING_FRAC:
        return ""
    return (
        f"Pillow decodes images in {percent(frac)} of the time in the DataLoader. Decode each file once, and store the "
        "images at the size you train on. JPEG files can be decoded at 1/2, 1/4 or 1/8 of their size: call "
        'image.draft("RGB", (width, height)) directly after Image.open(); the result is at least as large as this, and '
        "its pixels differ slightly from those of a full-size image that is resized. Other formats ignore draft()."
    )


def whole_batches(evidence: Evidence, loading: LoadingCost) -> Remedy | None:
    """Return code that indexes a TensorDataset once per batch; None for other datasets."""
    code = whole_batches_code(evidence, loading.loader)
    setup = loading.loader
    if not code or setup is None:
        return None
    fetch_ns = _whole_fetch_ns(setup, loading.batches)
    rest_ns, step_ns, loader = loading.rest_ns, loading.step_ns, evidence.names.loader
    floor_ns = _fastest_rest_ns(evidence, loading)
    return Remedy(
        fix=code,
        advice=f"{loader}.batch_size is None then. The batch sampler is {loader}.sampler, and your own sampler "
        f"{loader}.sampler.sampler, e.g. for set_epoch().",
        gain=Gain(
            step_ns=step_ns,
            best_ns=min(step_ns, floor_ns + fetch_ns[0]),
            worst_ns=rest_ns + fetch_ns[1],
            floor_ns=floor_ns,
            basis="one index operation per batch instead of one per sample",
            floor_assumes="data loading at no cost",
            cold_floor_ns=rest_ns,
        ),
    )


def _whole_fetch_ns(setup: Loader, batches: int) -> tuple[int, int]:
    """Return the time to index a TensorDataset once for each batch of a step: on a fast and on a slow machine."""
    low, high = (
        _FETCH_NS[end]
        + (setup.batch_tensors or _TENSORS[end]) * (_TENSOR_NS[end] + (setup.batch_size or 1) * _INDEX_NS[end])
        + 1e9 * (setup.batch_bytes or 0) / _GATHERED_BYTES_PER_S[end]
        for end in (0, 1)
    )
    return round(batches * low), round(batches * high)


def _cheaper_samples(evidence: Evidence, loading: LoadingCost, workers: Remedy, limited: bool) -> Remedy:
    """Return what to do where the cores limit what workers can give."""
    gain, step_ns, rest_ns = workers.gain, loading.step_ns, loading.rest_ns
    floor_ns = _fastest_rest_ns(evidence, loading)
    return Remedy(
        advice=_CHEAPER_ADVICE,
        gain=Gain(
            step_ns=step_ns,
            best_ns=floor_ns,
            worst_ns=round(step_ns - _LEAST_CHEAPER_FRAC * (step_ns - rest_ns)),
            floor_ns=floor_ns,
            basis="less CPU time per batch, which removes 30 to 100 % of the wait for data",
            floor_assumes="data loading at no cost",
            cold_floor_ns=rest_ns,
        ),
        caveats=(
            f"Workers would {'help less' if gain.best_speedup > _NO_GAIN else 'not help'} here (predicted "
            f"{ratio(gain.worst_speedup).removesuffix('x')}-{ratio(gain.best_speedup)}), because "
            f"{_COMPETING if limited else _PASSING}.",
        ),
    )


def caching(evidence: Evidence, loading: LoadingCost) -> Remedy:
    """Return how to load the samples once and keep them in memory; without code if there are too many."""
    items, fix, change = _items(loading), "", None
    caveat = f"{items or 0:,} samples may not fit in memory: store the preprocessed samples on a local disk instead."
    if (items or 0) <= _MAX_CACHED_ITEMS:
        change = change_loader(evidence, loading.loader, {"num_workers": 0}, "Cached({dataset})")
        fix = f"import torch\n\n{CACHED_DATASET_CODE}\n{change.code}" if change.code else ""
        samples = f"all {items:,} samples" if items else "all samples"
        caveat = (
            f"Cached holds {samples} in memory. Loading them takes as long as one epoch of data loading does now, so "
            "it pays off from the second epoch on. It also freezes random augmentation."
        )
    return Remedy(
        name="cached",
        fix=fix,
        advice=change.advice if change and change.advice else "Load each sample once, and keep it in memory.",
        function=change.function if change else None,
        gain=freed_gain(
            evidence,
            loading,
            "samples loaded once before training, which removes 70 to 100 % of the wait for data",
            0.7,
        ),
        caveats=(caveat,),
    )


def freed_gain(evidence: Evidence, loading: LoadingCost, basis: str, least_removed: float) -> Gain:
    """Return the gain of data loading at no cost; if workers slow down the model's own threads, these speed up too."""
    rest_ns = loading.rest_ns
    best_ns = _fastest_rest_ns(evidence, loading)
    cores = evidence.run.machine.cores_allowed
    if not evidence.on_gpu and loading.workers and cores and loading.rest_cpu_ns:
        alone_ns = ceil(loading.rest_cpu_ns / min(cores, model_threads(evidence) or cores))
        best_ns = max(1, min(best_ns, ceil(_UNCROWDED_FRAC * alone_ns)))
    return Gain(
        step_ns=loading.step_ns,
        best_ns=best_ns,
        worst_ns=max(best_ns, loading.step_ns - round(least_removed * (loading.step_ns - rest_ns))),
        floor_ns=best_ns,
        basis=f"{basis}; {_FASTER_REST}" if best_ns < rest_ns else basis,
        floor_assumes="data loading at no cost",
        cold_floor_ns=max(rest_ns, best_ns),
    )


def _fastest_rest_ns(evidence: Evidence, loading: LoadingCost) -> int:
    """Return the shortest time that the rest of a step may take when no batch is loaded between two steps."""
    rest_ns = min(loading.rest_ns, loading.min_rest_ns or loading.rest_ns)
    return rest_ns if evidence.on_gpu else with_warm_caches_ns(rest_ns, loading.step_ns)


def _items(loading: LoadingCost) -> int | None:
    """Return the number of samples in an epoch; None if unknown."""
    setup = loading.loader
    return setup.batches * setup.batch_size if setup and setup.batches and setup.batch_size else None
