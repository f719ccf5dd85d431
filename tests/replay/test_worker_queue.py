"""The queue of workers: three limits, of which the slowest decides; workers are not free."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.analysis.data.loader import LoadingCost
from gpulab.replay.graph.graph import CORE_LIMIT, WORKER_LIMIT
from gpulab.replay.worker_count_model import (
    batch_time_ns,
    cpu_time_per_step_ns,
    predict_workers,
    recommended_workers,
    workers_to_keep_up,
)

MS = 1_000_000


def feeding(fetch, rest, fetch_cpu=None, rest_cpu=None):
    return LoadingCost(
        workers=0,
        loader=None,
        step_ns=(fetch + rest) * MS,
        fetch_ns=fetch * MS,
        traced_fetch_ns=fetch * MS,
        exposed_ns=fetch * MS,
        fetch_cpu_ns=None if fetch_cpu is None else fetch_cpu * MS,
        rest_cpu_ns=None if rest_cpu is None else rest_cpu * MS,
    )


def test_items_that_wait_are_limited_by_the_model_once_there_are_workers_enough():
    prediction = predict_workers(feeding(40, 20, fetch_cpu=1, rest_cpu=20), 4, cores=2)
    assert (prediction.best_ns, prediction.limit) == (20 * MS, "the model")


def test_too_few_workers_are_the_limit_themselves():
    prediction = predict_workers(feeding(90, 10, fetch_cpu=1, rest_cpu=10), 2, cores=16)
    assert (prediction.best_ns, prediction.limit) == (45 * MS, WORKER_LIMIT)


def test_items_that_compute_are_limited_by_the_cores():
    prediction = predict_workers(feeding(40, 20, fetch_cpu=40, rest_cpu=40), 2, cores=2)
    assert (prediction.best_ns, prediction.limit) == (40 * MS, CORE_LIMIT)


def test_on_one_core_workers_only_cost():
    prediction = predict_workers(feeding(40, 20, fetch_cpu=40, rest_cpu=20), 1, cores=1)
    assert prediction.best_ns == 60 * MS < prediction.worst_ns


def test_the_models_own_threads_make_the_gain_on_full_cores_uncertain():
    costs = feeding(40, 20, fetch_cpu=40, rest_cpu=40)
    alone, crowded = predict_workers(costs, 2, 2.0, threads=1), predict_workers(costs, 2, 2.0, threads=2)
    assert crowded.best_ns == alone.best_ns
    assert crowded.worst_ns > alone.worst_ns
    assert predict_workers(costs, 2, 8.0, threads=2).worst_ns == predict_workers(costs, 2, 8.0).worst_ns


def test_unknown_cores_are_not_counted():
    assert predict_workers(feeding(40, 20), 4, cores=None).limit == "the model"


@given(
    st.integers(1, 500),
    st.integers(1, 500),
    st.integers(0, 500),
    st.integers(0, 2000),
    st.integers(1, 16),
    st.sampled_from([None, 1.0, 2.0, 8.0]),
)
def test_a_prediction_is_a_range_above_the_floor(fetch, rest, fetch_cpu, rest_cpu, workers, cores):
    costs = feeding(fetch, rest, min(fetch, fetch_cpu), rest_cpu)
    prediction = predict_workers(costs, workers, cores)
    assert 0 < prediction.floor_ns <= prediction.best_ns <= prediction.worst_ns
    assert prediction.best_ns <= costs.step_ns
    assert prediction.floor_ns <= costs.rest_ns


@pytest.mark.parametrize(
    ("costs", "cores", "count"),
    [
        (feeding(40, 20, fetch_cpu=0, rest_cpu=20), 2.0, 4),  # they wait: more than there are cores
        (feeding(40, 20, fetch_cpu=40, rest_cpu=20), 2.0, 2),  # they compute: as many as there are cores
        (feeding(5, 100, fetch_cpu=5, rest_cpu=100), 4.0, 2),  # a light loader needs few
        (feeding(5, 100, fetch_cpu=5, rest_cpu=100), 8.0, 4),  # but where there are cores, some headroom
        (feeding(900, 10, fetch_cpu=0, rest_cpu=10), None, 8),  # never without bound
    ],
)
def test_how_many_workers_to_start_with(costs, cores, count):
    assert recommended_workers(costs, cores) == count


def late(workers, step, exposed, worker_cpu=None, rest_cpu=None):
    """Workers that the main process waits for in every step."""
    return LoadingCost(
        workers=workers,
        loader=None,
        step_ns=step * MS,
        fetch_ns=exposed * MS,
        traced_fetch_ns=exposed * MS,
        exposed_ns=exposed * MS,
        rest_cpu_ns=None if rest_cpu is None else rest_cpu * MS,
        worker_cpu_ns=None if worker_cpu is None else worker_cpu * MS,
    )


def test_workers_that_are_late_are_never_idle_so_a_batch_keeps_one_for_as_many_steps_as_there_are():
    assert batch_time_ns(late(2, step=50, exposed=30)) == 100 * MS
    assert batch_time_ns(feeding(40, 20)) == 40 * MS, "without workers the main process builds it"


@pytest.mark.parametrize(
    ("costs", "count"),
    [
        (late(1, step=48, exposed=36), 4),  # 48 ms of a worker, and one is wanted every 12
        (late(2, step=50, exposed=30), 5),
        (late(4, step=20, exposed=1), 5),  # hardly late: one more
    ],
)
def test_as_many_workers_are_needed_as_give_a_batch_whenever_the_model_could_take_one(costs, count):
    assert workers_to_keep_up(costs) == count
    assert predict_workers(costs, count, cores=None).limit == "the model"


def test_more_workers_that_compute_are_limited_by_the_cores_that_their_batches_need():
    costs = late(2, step=100, exposed=40, worker_cpu=150, rest_cpu=50)
    assert cpu_time_per_step_ns(costs) == 200 * MS
    assert predict_workers(costs, 4, cores=2.5).best_ns == 80 * MS
    assert predict_workers(costs, 4, cores=2.5).limit == CORE_LIMIT
    assert cpu_time_per_step_ns(late(2, step=100, exposed=40)) is None
