"""Workers that cost a CPU loop more than they save: passing a batch takes about as long as loading it."""

from __future__ import annotations

from typing import NamedTuple

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
    waits = _waits(evidence, loading)
    gain = _gain(loading, max(most_ns, waits.most_ns) if waits.with_loading else most_ns + waits.most_ns, least_ns)
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
        advice=sentences(change.advice, _ABOUT_WAITS if waits.most_ns > most_ns else ""),
        loader_settings=change.settings,
        function=change.function,
        gain=gain,
        confidence=LIKELY,
        spans=evidence.ledger.spans["loader"],
    )


class _Waits(NamedTuple):
    """How long samples may wait in a step, e.g. for a network, which takes no CPU time."""

    most_ns: int
    with_loading: bool  # it includes the CPU time of loading


def _waits(evidence: Evidence, loading: LoadingCost) -> _Waits:
    """Return the waits that the workers measured; otherwise, the first batch shows how long loading takes at most."""
    measured_ns = loading.loader.worker_wait_ns if loading.loader else None
    if measured_ns is not None:
        return _Waits(loading.batches * measured_ns, with_loading=False)
    return _Waits(loading.batches * (evidence.cached(longest_first_batch_ns) or 0), with_loading=True)


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
