"""Workers that cost a CPU loop more than they save: passing a batch takes about as long as loading it."""

from __future__ import annotations

from gpulab.analysis.data.loader import LoadingCost
from gpulab.analysis.data.workers import longest_first_batch_ns
from gpulab.replay.rewrites.data.batch_passing import sending_range_ns
from gpulab.rules.data.loader_code import change_loader
from gpulab.rules.data.no_workers import loader_numbers, loader_time_text
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, Gain
from gpulab.rules.engine.phrases import sentences, step_or_recording
from gpulab.wording import duration, percent

_MIN_FRAC = 0.10
_UNCROWDED_FRAC = 0.7  # the fastest steps of the model, without workers on its cores and caches
_ABOUT_WAITS = (
    "This does not help if loading a sample waits for a network or a disk: workers wait side by side, the main process "
    "cannot. Measure it first."
)


def needless_workers(evidence: Evidence, loading: LoadingCost) -> Finding | None:
    """Return the finding for batches that are ready, but that the main process takes long to receive."""
    sent_ns, share = sending_range_ns(loading), evidence.ledger.typical_frac("loader")
    if evidence.on_gpu or loading.worker_cpu_ns is None or sent_ns is None or share < _MIN_FRAC:
        return None
    most_ns, least_ns = (max(0.0, loading.worker_cpu_ns - ns) for ns in sent_ns)
    loading_ns = _most_ns(evidence, loading, most_ns)
    gain = _gain(loading, loading_ns, least_ns)
    if gain.best_ns >= gain.step_ns:
        return None
    change = change_loader(evidence, loading.loader, {"num_workers": 0})
    return Finding(
        ledger_parts=("loader",),
        claim=f"{percent(share)} {step_or_recording(evidence)} goes to receiving batches that the workers have "
        f"already loaded: {duration(loading.fetch_ns / loading.batches)} per batch. A worker needs "
        f"{duration(loading.worker_cpu_ns / loading.batches)} of CPU time to load and send one.",
        evidence=(loader_time_text(evidence, loading),),
        numbers=loader_numbers(loading, share),
        fix=change.code,
        advice=sentences(change.advice, _ABOUT_WAITS if loading_ns > 2 * most_ns else ""),
        loader_settings=change.settings,
        function=change.function,
        gain=gain,
        confidence=LIKELY,
        spans=evidence.ledger.spans["loader"],
    )


def _most_ns(evidence: Evidence, loading: LoadingCost, computing_ns: float) -> float:
    """Return how long loading may take per step in the main process, which waits for one sample after another.

    Waiting, e.g. for a network, takes no CPU time. Unless the workers measured it, the first batch shows how long
    loading takes at most.
    """
    if loading.loader is not None and loading.loader.worker_wait_ns is not None:
        return computing_ns + loading.batches * loading.loader.worker_wait_ns
    return max(computing_ns, loading.batches * (evidence.cached(longest_first_batch_ns) or 0))


def _gain(loading: LoadingCost, most_ns: float, least_ns: float) -> Gain:
    """Return the gain of loading in the main process, which takes this long at most and at least."""
    fastest_ns = round(_UNCROWDED_FRAC * min(loading.rest_ns, loading.min_rest_ns or loading.rest_ns))
    return Gain(
        step_ns=loading.step_ns,
        best_ns=max(1, fastest_ns + round(least_ns)),
        worst_ns=max(fastest_ns + round(least_ns), loading.rest_ns + round(most_ns)),
        floor_ns=max(1, fastest_ns),
        basis="loading in the main process, without the cost of passing batches, and at worst with all waits of its "
        "samples",
        floor_assumes="data loading at no cost",
        cold_floor_ns=loading.rest_ns,
    )
