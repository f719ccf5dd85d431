"""Summaries of recorded traces: those of the complete runs, whatever the worker read before."""

import pytest

from gpulab import trace
from gpulab.fleet.rank_files import RankFile
from gpulab.fleet.rank_task import FileReading, summarise_file
from gpulab.rules import diagnose
from gpulab.tables import DEVICE_KINDS, EventKind
from tests.support.tiers import every_nth

WITH_COLLECTIVES = (
    "a100_ddp_8ranks_rank",
    "b200_eager",
    "cpu_only_gloo",
    "mi300_resnet_checkpoint",
    "v100_ns_resolution",
)
TRACES = (*WITH_COLLECTIVES, "h100_timesformer_inference", "mi250_minitoy", "v100_resnet50_workers4")


def summary_of(path):
    return summarise_file(RankFile(str(path)), FileReading())


@pytest.mark.parametrize("name", every_nth(TRACES, 4))
def test_a_worker_gives_the_diagnosis_and_the_ledger_of_the_complete_run(name, recorded):
    path = recorded(f"{name}.json.gz")
    summary, run = summary_of(path), trace.read(path, shapes=True)
    diagnosis = diagnose(run)
    first, gain = diagnosis.first, diagnosis.first and diagnosis.first.gain
    assert summary.events == len(run.event_rows)
    assert summary.part_ns == dict(diagnosis.step.part_ns)
    assert summary.median_part_ns == {part.key: diagnosis.ledger.median_ns(part.key) for part in diagnosis.ledger.parts}
    assert (summary.finding is None) == (first is None)
    if first is not None:
        assert (summary.finding.rule, summary.finding.confidence) == (first.rule, first.confidence)
        speedups = (gain.worst_speedup, gain.best_speedup) if gain else (None, None)
        assert (summary.finding.worst_speedup, summary.finding.best_speedup) == speedups


@pytest.mark.parametrize("name", WITH_COLLECTIVES)
def test_the_times_of_a_gpu_are_those_of_a_count_of_its_events(name, recorded):
    path = recorded(f"{name}.json.gz")
    summary, run = summary_of(path), trace.read(path)
    if summary.device != "gpu":
        assert summary.device_time is None
        return
    work = run.event_rows.of_kind(*DEVICE_KINDS)
    busiest = max(set(work["device"].tolist()), key=lambda device: work["dur_ns"][work["device"] == device].sum())
    work = work.select(work["device"] == busiest)
    times = summary.device_time
    assert times.window_ns == (work["start_ns"] + work["dur_ns"]).max() - work["start_ns"].min()
    assert times.busy_ns == covered_ns(work)
    assert times.kernels_ns == covered_ns(work.of_kind(EventKind.KERNEL))
    assert times.communication_ns == covered_ns(work.of_kind(EventKind.COLLECTIVE))


def covered_ns(rows):
    """The time in which at least one of these events ran, event by event."""
    total, reached = 0, -1
    for start, dur in sorted(zip(rows["start_ns"].tolist(), rows["dur_ns"].tolist(), strict=True)):
        total += max(0, start + dur - max(start, reached))
        reached = max(reached, start + dur)
    return total


def test_a_summary_does_not_depend_on_what_the_worker_read_before(recorded):
    paths = [recorded(f"{name}.json.gz") for name in ("a100_ddp_8ranks_rank", "b200_eager", "v100_ns_resolution")]
    forwards = [summary_of(path) for path in paths]
    backwards = [summary_of(path) for path in reversed(paths)]
    assert forwards == backwards[::-1]
