"""What the samples say of workers, threads and cores."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gpulab.analysis.data.worker_starts import worker_starts
from gpulab.analysis.data.workers import longest_first_batch_ns, mean_later_wait_ns, worker_activity
from gpulab.analysis.host.cpu_contention import contention
from gpulab.analysis.host.intra_op_threads import intra_op_time_ns
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.tables import WORKER_SAMPLES, EventKind
from tests.support.runs.made_loading_runs import WORKERS, epochs, from_main, from_workers
from tests.support.runs.made_runs import MS, event, host_sample, rows, run_of, stepped


def analyse(analysis, run):
    run_steps = find_steps(run)
    return analysis(run, run_steps, build_ledger(run, run_steps))


def look(at_ms, worker, cpu_s=0.0, blocked=0.0, read=0.0, threads=3.0):
    readings = {"cpu_s": cpu_s, "blocked": blocked, "read_bytes": read, "threads": threads}
    return {"at_ns": at_ms * MS, "worker": worker, **readings}


def watched(*looks):
    return run_of(
        stepped(lambda at: [event(EventKind.OP, "aten::mm", at, 90)]), worker_rows=rows(WORKER_SAMPLES, looks)
    )


def test_worker_activity_is_cpu_time_over_lifetime():
    looks = [look(0, 0, 1.0), look(1000, 0, 1.5), look(1000, 1, 0.0), look(2000, 1, 0.1), look(2000, 2, 5.0)]
    activity = analyse(worker_activity, watched(*looks))
    assert activity.busy_frac == pytest.approx(0.3), "the third was looked at only once"


def test_bytes_and_threads_cover_all_workers():
    looks = [look(at, worker, blocked=worker, read=at * 1e3, threads=5) for at in (0, 500, 1000) for worker in (0, 1)]
    activity = analyse(worker_activity, watched(*looks))
    assert activity.read_bytes_per_s == pytest.approx(2e6)
    assert activity.threads == 5


def test_unknown_worker_readings_are_absent_not_zero():
    nothing = math.nan
    looks = [look(at, 0, cpu_s=at / 1e4, blocked=nothing, read=nothing, threads=nothing) for at in (0, 1000)]
    activity = analyse(worker_activity, watched(*looks))
    assert (activity.read_bytes_per_s, activity.threads) == (None, None)
    assert activity.busy_frac == pytest.approx(0.1)
    assert analyse(worker_activity, watched(*(look(at, 0, cpu_s=nothing) for at in (0, 1000)))) is None
    assert analyse(worker_activity, watched()) is None


def test_first_batches_of_epochs_are_separated_from_others():
    run = from_workers(marks=epochs(60, 10))
    assert analyse(longest_first_batch_ns, run) == 60 * MS
    assert analyse(mean_later_wait_ns, run) == 10 * MS


def test_a_start_costs_its_first_batch_the_creation_of_processes_and_their_end():
    run = from_workers(marks=epochs(60, 10))
    starts = analyse(worker_starts, run)
    assert (starts.restarts, starts.restarts_ns, starts.received_ns) == (1, 50.1 * MS, 100 * MS)
    assert starts.restarts_frac == pytest.approx(50 / 1000, rel=0.05)
    assert starts.starts_ns == 2 * starts.restarts_ns
    measured = replace(run, loaders=(replace(run.loaders[0], worker_starts=2, worker_start_ns=30 * MS),))
    assert analyse(worker_starts, measured).restarts_ns == 80.1 * MS


def test_one_pass_and_persistent_workers_restart_nothing():
    assert analyse(worker_starts, from_workers()).restarts == 0
    persistent = from_workers(marks=epochs(60, 10), loader=replace(WORKERS, persistent_workers=True))
    assert analyse(worker_starts, persistent).restarts == 0
    assert analyse(worker_starts, from_main()) is None


def test_starts_of_all_loaders_count():
    evaluation = [{**each, "loader": 1} for each in epochs(30, 10)]
    shifted = [
        {**each, "start_ns": each["start_ns"] + 1000 * MS, "end_ns": each["end_ns"] + 1000 * MS} for each in evaluation
    ]
    run = from_workers(marks=epochs(60, 10) + shifted)
    both = analyse(worker_starts, replace(run, loaders=(WORKERS, replace(WORKERS, name="valid_loader"))))
    assert (both.restarted, both.restarts, both.received) == ((0, 1), 2, 20)


def test_in_older_runs_the_time_of_starting_workers_comes_from_samples():
    place = "torch.utils.data.dataloader._MultiProcessingDataLoaderIter.__init__"
    samples = [host_sample(at, called=place if at in (450, 500) else None) for at in range(0, 1000, 50)]
    run = from_workers(marks=epochs(10, 10), samples=samples)
    assert analyse(worker_starts, run).restarts_ns == 100.1 * MS


def test_contention_uses_rates_over_the_loop():
    samples = [
        host_sample(at, preempted=at * 2.0, process_cpu_s=at / 1e3 * 2, throttled_s=at / 1e4, iowait_frac=0.25)
        for at in range(0, 1000, 50)
    ]
    run = from_workers(samples=samples, cores=4.0, threads=7, facts={"threads": "16"})
    crowding = analyse(contention, run)
    assert (crowding.cores, crowding.threads, crowding.worker_threads) == (4.0, 16, 5)
    assert crowding.preempted_per_cpu_s == pytest.approx(1000)
    assert crowding.throttled_frac == pytest.approx(0.1)
    assert crowding.iowait_cores == pytest.approx(1.0)
    assert crowding.cores_frac is None
    assert crowding.read_bytes_per_s is None


def test_a_single_large_read_is_no_sustained_rate():
    def reading(read):
        samples = [host_sample(at, read_bytes=read(at)) for at in range(0, 1000, 50)]
        return analyse(contention, from_workers(samples=samples)).read_bytes_per_s

    assert reading(lambda at: 3e3 * at) == pytest.approx(3e6), "in every part of the loop"
    assert reading(lambda at: 9e6 if at > 100 else 0.0) == 0, "a library, loaded in the first step"
    assert reading(lambda at: 12e6 if at > 600 else 0.0) == 0


def test_without_samples_or_cores_contention_is_unknown():
    assert analyse(contention, from_workers(samples=[])) is None
    assert analyse(contention, from_workers(cores=None)) is None
    assert analyse(contention, from_main()).preempted_per_cpu_s is None


def test_matrix_products_do_not_count_as_intra_op_time():
    def step(at):
        return [event(EventKind.OP, "aten::convolution", at, 50), event(EventKind.OP, "aten::addmm", at + 50, 40)]

    assert analyse(intra_op_time_ns, run_of(stepped(step))) == 50 * MS
    assert analyse(intra_op_time_ns, from_workers()) == 0, "on a GPU the CPU does not compute the model"
