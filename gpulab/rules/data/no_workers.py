"""A rule about data loading in the main process."""

from __future__ import annotations

from dataclasses import replace

from gpulab.analysis.data.loader import LoadingCost
from gpulab.replay.worker_count_model import workers_to_keep_up
from gpulab.rules.data.late_batches import LateBatchCause, cause_of_late_batches
from gpulab.rules.data.loading_remedies import decoding_advice, loading_alternatives, loading_remedy, with_remedy
from gpulab.rules.engine.busiest_function import loader_line_text
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, Finding, known_numbers
from gpulab.rules.engine.phrases import idle_share, range_over_steps, sentences, step_spends
from gpulab.wording import duration, percent

_CPU_BOUND_FRAC = 0.7  # a fetch with more CPU time than this computes; with less than 0.3 it waits

_IN_MAIN = "num_workers=0 loads batches in the main process"
_LESS_WORK = "the main process loads the batches, and less work per batch would help more here than workers"


def no_workers(evidence: Evidence) -> Finding | None:
    """There are no DataLoader workers: the main process loads the data while the model waits.

    Proof: while the model waits, the main thread runs `_SingleProcessDataLoaderIter.__next__`, which is used only with
    `num_workers=0`. The model does not count as waiting while the GPU has queued work.

    Confused with: slow preprocessing in the loop itself, outside the DataLoader (`host_python`); reads that wait for
    storage (`slow_storage`); loading that needs more CPU time than all cores supply (`cpu_bound_loading`). Suspect
    `slow_storage` if the process reads from a disk during the wait, if a core is idle in I/O wait, or if the files are
    on a network file system.

    What to do: set `num_workers` of the DataLoader. If loading a sample is CPU-bound, each worker needs its own
    core; if it mostly waits for storage, workers can share a core. Workers can cost more than they save if batches are
    cheap to load, or if loading is CPU-bound and there are few cores. In that case, keep num_workers=0 and load the
    whole batch with one array operation, or reduce the work per sample.
    """
    loading = evidence.loading
    if loading is None or cause_of_late_batches(evidence) is not LateBatchCause.MAIN_PROCESS:
        return None
    share = evidence.part_share("loader")
    remedy = loading_remedy(evidence, loading)
    finding = Finding(
        ledger_parts=("loader",),
        claim=f"{idle_share(evidence, share)}: {_IN_MAIN if remedy.adds_workers else _LESS_WORK}.",
        evidence=(loader_time_text(evidence, loading), *_fetch_cpu_share(loading), *loader_line_text(evidence)),
        numbers=loader_numbers(loading, share),
        confidence=CERTAIN,
        spans=evidence.ledger.spans["loader"],
    )
    advice = sentences(remedy.advice, decoding_advice(evidence))
    others = loading_alternatives(evidence, loading, remedy)
    return replace(
        with_remedy(finding, replace(remedy, advice=advice)),
        alternatives=tuple(with_remedy(finding, each, each.name) for each in others),
    )


def loader_time_text(evidence: Evidence, loading: LoadingCost) -> str:
    """Return the time of the main thread inside the DataLoader, and how much of it the device waited."""
    exposed_ns, steps = evidence.typical_step.sum_ns("loader"), range_over_steps(evidence, "loader")
    if not evidence.on_gpu:  # the model waits for all of it
        return f"{step_spends(evidence, exposed_ns)} in next() of the DataLoader iterator ({steps})."
    inside = step_spends(evidence, loading.fetch_ns)
    idle = f"the GPU is idle for {duration(exposed_ns)} of that ({steps})"
    return f"{inside} in next() of the DataLoader iterator; {idle}."


def _fetch_cpu_share(loading: LoadingCost) -> tuple[str, ...]:
    """Return whether loading a batch computes or waits, if that was measured."""
    frac = loading.cpu_frac
    if frac is None:
        return ()
    if frac >= _CPU_BOUND_FRAC:
        kind = "it computes the batch rather than waiting for a disk or network, so each worker would need a core"
    elif frac <= 1 - _CPU_BOUND_FRAC:
        kind = "loading mostly waits (for storage, a network or something else), so several workers can share a core"
    else:
        kind = "loading partly computes and partly waits"
    return (f"{percent(frac)} of that time is CPU time of the main thread: {kind}.",)


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
