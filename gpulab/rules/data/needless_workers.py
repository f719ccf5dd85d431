"""Workers that cost a CPU loop more than they save: by starts, by passing batches, or by slowing down the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gpulab.analysis.data.idle_workers import WithoutWorkers, loading_range_ns, without_workers
from gpulab.analysis.data.loader import LoadingCost
from gpulab.analysis.data.worker_starts import WorkerStarts, worker_starts
from gpulab.analysis.data.workers import longest_first_batch_ns
from gpulab.replay.rewrites.data.batch_passing import sending_range_ns
from gpulab.rules.data.loader_code import change_loader
from gpulab.rules.data.loading_remedies import Remedy, with_remedy
from gpulab.rules.data.no_workers import loader_numbers, loader_time_text
from gpulab.rules.data.worker_gain import worker_arguments
from gpulab.rules.engine.evidence import Evidence, with_warm_caches_ns
from gpulab.rules.engine.finding import LIKELY, Finding, Gain
from gpulab.rules.engine.phrases import sentences, step_or_recording
from gpulab.run import Loader
from gpulab.wording import count, duration, percent

_MIN_FRAC = 0.10
_MIN_START_FRAC = 0.05  # of the whole loop
_LEAST_GAIN = 1.03  # without workers, at worst
_SLOWED = 0.9  # of the time beside workers: if the model takes no less without them, they do not slow it down
_UNCROWDED_FRAC = 0.7  # the fastest steps of the model, without workers on its cores and caches
_MUCH_SLOWED = 0.75  # of the time beside workers: then cheaper samples are worth a try
_MIN_CPU_FRAC = 0.2  # of the time of a batch: workers with less work do not explain a slower model
_LEAST_CHEAPER = 0.25  # of what loading costs, at worst
_CHEAPER_SAMPLES = (
    "Load cheaper samples: compute what does not change once, before the training; slice and transform whole batches "
    "instead of samples; store images at the size you need. Loading them in the main process (num_workers=0) may gain, "
    "too: measure it."
)
_ABOUT_WAITS = (
    "This does not help if loading a sample waits for a network or a disk: workers wait side by side, the main process "
    "cannot. Measure it first."
)


def needless_workers(evidence: Evidence, loading: LoadingCost) -> Finding | None:
    """Return the finding for batches that are ready, but that the main process takes long to receive."""
    share = evidence.ledger.typical_frac("loader")
    if share < _MIN_FRAC:
        return None
    remedy = _without_workers(evidence, loading, [loading.loader], _typical_step(loading))
    if remedy is None or remedy.gain.best_ns >= remedy.gain.step_ns:
        return None
    finding = Finding(
        ledger_parts=("loader",),
        claim=f"{percent(share)} {step_or_recording(evidence)} goes to receiving batches that the workers have "
        f"already loaded: {duration(loading.fetch_ns / loading.batches)} per batch. {_loading_text(loading)}",
        evidence=(loader_time_text(evidence, loading),),
        numbers=loader_numbers(loading, share),
        confidence=LIKELY,
        spans=evidence.ledger.spans["loader"],
    )
    return with_remedy(finding, remedy)


def restarted_workers(
    evidence: Evidence, loading: LoadingCost, proposed: int, more_evidence: tuple[str, ...]
) -> Finding | None:
    """Return the finding for workers that start again for every pass, if that takes a good part of the loop.

    `proposed`: how many workers to keep. The remedy is the one that gains more at worst: to keep the workers alive, or
    to load the batches in the main process.
    """
    starts = restarts_of(evidence, loading)
    if starts is None:
        return None
    # The code changes the first one: that of the training, if its workers restart.
    loaders = sorted(
        (evidence.run.loaders[index] for index in starts.restarted), key=lambda each: each != loading.loader
    )
    keep = _with_persistent_workers(evidence, loading, starts, loaders, proposed)
    drop = _without_workers(evidence, loading, loaders, _mean_step(loading, starts))
    is_dropped = drop is not None and _gains_more(drop, keep)
    finding = Finding(
        ledger_parts=("loader",),
        claim=_restart_claim(loaders, starts),
        evidence=(
            f"Measured at {count(starts.restarts, 'start')} after the first.",
            *(_costs_text(evidence, loading) if is_dropped else more_evidence),
        ),
        numbers=loader_numbers(loading, evidence.part_share("loader")),
        confidence=LIKELY,
        spans=starts.spans,
    )
    return with_remedy(finding, drop if drop is not None and is_dropped else keep)


def slowing_workers(evidence: Evidence, loading: LoadingCost) -> Finding | None:
    """Return the finding for a model that computes more slowly beside its workers, which would be faster without."""
    times = evidence.cached(without_workers)
    if evidence.on_gpu or times is None or not _is_faster_without_workers(times):
        return None
    if times.idle_ns > _SLOWED * times.crowded_ns:
        return None
    others = (loader for loader in evidence.run.loaders if loader.workers and loader != loading.loader)
    loads, gain = _loads(evidence, loading), replace(_measured_gain(times), cold_floor_ns=None)
    finding = Finding(
        ledger_parts=("compute",),
        claim=f"DataLoader workers slow down the model: {_speed_text(times)}.",
        evidence=_cost_text(loading),
        numbers=loader_numbers(loading, evidence.part_share("loader")),
        confidence=LIKELY,
        spans=evidence.ledger.spans["compute"],
    )
    about_waits = _ABOUT_WAITS if loads is not None and loads.may_wait else ""
    return with_remedy(finding, _changed(evidence, [loading.loader, *others], {"num_workers": 0}, gain, about_waits))


def crowding_samples(evidence: Evidence, loading: LoadingCost) -> Finding | None:
    """Return the finding for workers that slow down the model so much that cheaper samples would speed it up.

    None if the loop is surely faster without workers, which is the smaller change.
    """
    times, loader = evidence.cached(without_workers), loading.loader
    if evidence.on_gpu or times is None or loader is None or _is_faster_without_workers(times):
        return None
    cpu_ns = loader.worker_batch_cpu_ns or 0
    if times.idle_ns > _MUCH_SLOWED * times.crowded_ns or cpu_ns < _MIN_CPU_FRAC * times.crowded_ns:
        return None
    finding = Finding(
        ledger_parts=("compute",),
        claim=f"Loading the samples takes the cores from the model: {_speed_text(times)}.",
        evidence=(f"A worker needs {duration(cpu_ns)} of CPU time to load a batch.",),
        numbers=loader_numbers(loading, evidence.part_share("loader")),
        confidence=LIKELY,
        spans=evidence.ledger.spans["compute"],
    )
    return with_remedy(finding, Remedy(gain=_gain_of_cheaper_samples(times), fix="", advice=_CHEAPER_SAMPLES))


def _gain_of_cheaper_samples(times: WithoutWorkers) -> Gain:
    """Return the gain of cheaper samples: at worst a quarter of what loading costs the model, at best all of it."""
    totals_ns = times.now_ns, times.floor_ns, times.as_slow_ns
    now_ns, floor_ns, as_slow_ns = (max(1, total_ns // times.steps) for total_ns in totals_ns)
    floor_ns = min(floor_ns, now_ns)
    return Gain(
        step_ns=now_ns,
        best_ns=floor_ns,
        worst_ns=round(now_ns - _LEAST_CHEAPER * (now_ns - floor_ns)),
        floor_ns=floor_ns,
        basis="the speed of the model while the workers are idle: at worst, a quarter of the difference is saved",
        floor_assumes="data loading at no cost",
        cold_floor_ns=max(floor_ns, as_slow_ns),
        is_mean=True,
    )


def restarts_of(evidence: Evidence, loading: LoadingCost) -> WorkerStarts | None:
    """Return the starts of workers if those of the training restart, and that takes a good part of the loop."""
    if loading.loader is None or loading.loader.persistent_workers:
        return None
    starts = evidence.cached(worker_starts)
    return starts if starts is not None and starts.restarts and starts.restarts_frac >= _MIN_START_FRAC else None


def _gains_more(remedy: Remedy, other: Remedy) -> bool:
    return remedy.gain.worst_ns < other.gain.worst_ns


class _Step(NamedTuple):
    """A step with workers: its time, that without starting workers and receiving batches, and its batches."""

    step_ns: int
    rest_ns: int
    loads: float  # batches that workers load, as a multiple of those of a typical training step
    basis: str = ""  # what else is removed
    is_mean: bool = False


def _typical_step(loading: LoadingCost) -> _Step:
    return _Step(loading.step_ns, loading.rest_ns, 1.0)


def _mean_step(loading: LoadingCost, starts: WorkerStarts) -> _Step:
    rest_ns = max(1, starts.step_ns - (starts.starts_ns + starts.received_ns) // starts.steps)
    loads = starts.received / starts.steps / loading.batches
    return _Step(starts.step_ns, rest_ns, loads, "starting workers and of ", is_mean=True)


def _without_workers(
    evidence: Evidence, loading: LoadingCost, loaders: Sequence[Loader | None], step: _Step
) -> Remedy | None:
    """Return how to load the batches in the main process, and the gain; None if it is unknown."""
    times, loads = evidence.cached(without_workers), _loads(evidence, loading)
    if evidence.on_gpu or loads is None:
        return None
    gain = _gain(loading, step, loads.most_ns, loads.least_ns) if times is None else _measured_gain(times)
    return _changed(evidence, loaders, {"num_workers": 0}, gain, _ABOUT_WAITS if loads.may_wait else "")


class _Loads(NamedTuple):
    """How long the main process would load the batches of a step."""

    least_ns: float
    most_ns: float
    may_wait: bool  # most of it, e.g. for a network, which takes no CPU time


def _loads(evidence: Evidence, loading: LoadingCost) -> _Loads | None:
    """Return what workers measured; otherwise their CPU time, and what the first batch of a pass took at most."""
    loader, sent_ns = loading.loader, sending_range_ns(loading)
    range_ns = None if loader is None else loading_range_ns(loader)
    if loader is not None and range_ns is not None:
        may_wait = (loader.worker_wait_ns or 0) > (loader.worker_batch_cpu_ns or 0)
        return _Loads(loading.batches * range_ns[0], loading.batches * range_ns[1], may_wait)
    if loading.worker_cpu_ns is None or sent_ns is None:
        return None
    most_ns, least_ns = (max(0.0, loading.worker_cpu_ns - ns) for ns in sent_ns)
    waits = _waits(evidence, loading)
    longest_ns = max(most_ns, waits.most_ns) if waits.with_loading else most_ns + waits.most_ns
    return _Loads(least_ns, longest_ns, waits.most_ns > most_ns)


def _changed(
    evidence: Evidence, loaders: Sequence[Loader | None], settings: Mapping[str, object], gain: Gain, advice: str = ""
) -> Remedy:
    """Return the change of the first of these DataLoaders, and the advice to change the others, too."""
    change, others = change_loader(evidence, loaders[0], settings), loaders[1:]
    names = [loader.name for loader in others if loader and loader.name]
    which = " and ".join(names) if len(names) == len(others) else f"the other {count(len(others), 'DataLoader')}"
    also = f"Do the same with {which}." if others else ""
    return Remedy(
        gain=gain,
        fix=change.code,
        advice=sentences(change.advice, also, advice),
        loader_settings=change.settings,
        function=change.function,
    )


def _measured_gain(times: WithoutWorkers) -> Gain:
    """Return the gain of loading in the main process, by the speed of the model beside idle workers."""
    totals_ns = times.now_ns, times.best_ns, times.worst_ns, times.floor_ns, times.as_slow_ns
    now_ns, best_ns, worst_ns, floor_ns, as_slow_ns = (max(1, total_ns // times.steps) for total_ns in totals_ns)
    return Gain(
        step_ns=now_ns,
        best_ns=min(best_ns, worst_ns),
        worst_ns=worst_ns,
        floor_ns=min(floor_ns, best_ns, worst_ns),
        basis="the speed of the model while the workers are idle, and the CPU time in which they load a batch",
        floor_assumes="data loading at no cost",
        cold_floor_ns=max(floor_ns, as_slow_ns),
        is_mean=True,
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


def _gain(loading: LoadingCost, step: _Step, most_ns: float, least_ns: float) -> Gain:
    """Return the gain of loading in the main process, where a step's batches take this long at most and at least."""
    crowding_ns = loading.rest_ns - _UNCROWDED_FRAC * min(loading.rest_ns, loading.min_rest_ns or loading.rest_ns)
    fastest_ns = max(1, round(step.rest_ns - crowding_ns))
    best_ns = fastest_ns + round(step.loads * least_ns)
    return Gain(
        step_ns=step.step_ns,
        best_ns=best_ns,
        worst_ns=max(best_ns, step.rest_ns + round(step.loads * most_ns)),
        floor_ns=fastest_ns,
        basis=f"loading in the main process, without the cost of {step.basis}passing batches, and at worst with all "
        "waits of its samples",
        floor_assumes="data loading at no cost",
        cold_floor_ns=step.rest_ns,
        is_mean=step.is_mean,
    )


def _with_persistent_workers(
    evidence: Evidence, loading: LoadingCost, starts: WorkerStarts, loaders: list[Loader], proposed: int
) -> Remedy:
    """Return how to keep the workers alive.

    Starting workers also takes cores from the steps around them: at best, half as much again. No step is faster than
    the fastest one.
    """
    rest_ns = max(1, starts.step_ns - starts.restarts_ns // starts.steps)
    floor_ns = min(rest_ns, loading.min_rest_ns or with_warm_caches_ns(rest_ns, starts.step_ns))
    gain = Gain(
        step_ns=starts.step_ns,
        best_ns=max(floor_ns, rest_ns - (starts.step_ns - rest_ns) // 2),
        worst_ns=(starts.step_ns + rest_ns) // 2,
        floor_ns=floor_ns,
        basis="removing 50 to 150 % of the start-up time of later epochs, which also slows down the steps around it",
        floor_assumes="epoch starts at no cost",
        cold_floor_ns=rest_ns,
        is_mean=True,
    )
    return _changed(evidence, loaders, worker_arguments(proposed, evidence.on_gpu), gain)


def _restart_claim(loaders: list[Loader], starts: WorkerStarts) -> str:
    workers = count(loaders[0].workers or 0, "worker")
    of_epochs, of_all = f"{workers} for every epoch", f"DataLoader workers {count(starts.restarts, 'time')}"
    return (
        f"{percent(starts.restarts_frac)} of the loop goes to restarting {of_all if loaders[1:] else of_epochs}, "
        f"{duration(starts.mean_restart_ns)} each time."
    )


def _costs_text(evidence: Evidence, loading: LoadingCost) -> tuple[str, ...]:
    """Say what a batch costs a worker, and how fast the model is while the workers are idle, if that was measured."""
    times = evidence.cached(without_workers)
    speed = () if times is None else (f"The model computes on the same cores: {_speed_text(times)}.",)
    return (*_cost_text(loading), *speed)


def _cost_text(loading: LoadingCost) -> tuple[str, ...]:
    loader = loading.loader
    if loader is None or loader.worker_batch_cpu_ns is None:
        return (_loading_text(loading),) if loading.worker_cpu_ns else ()
    return (f"A worker needs {duration(loader.worker_batch_cpu_ns)} of CPU time to load a batch.",)


def _is_faster_without_workers(times: WithoutWorkers) -> bool:
    """Whether loading in the main process is faster, also at worst."""
    return times.now_ns >= _LEAST_GAIN * times.worst_ns


def _speed_text(times: WithoutWorkers) -> str:
    """Return how fast the model is beside workers that load, and beside idle ones."""
    return (
        f"it takes {duration(times.crowded_ns)} per batch on average, and {duration(times.idle_ns)} when the workers "
        "are idle, near the end of a pass"
    )


def _loading_text(loading: LoadingCost) -> str:
    needed_ns = (loading.worker_cpu_ns or 0) / loading.batches
    return f"A worker needs {duration(needed_ns)} of CPU time to load and send one."
