"""Exchanges of gloo as device ops of a CPU graph: which call started each, and which wait ended with it."""

from __future__ import annotations

import numpy as np
import pytest

from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.replay.critical_path import critical_path
from gpulab.replay.graph.build import build_graph
from gpulab.replay.graph.cpu_exchanges import exchange_calls, exchanges
from gpulab.replay.sweep import sweep
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, run_of, stepped

BACKEND = 1  # the thread of gloo


def exchange(start_ms, dur_ms, name="gloo:all_reduce"):
    return event(EventKind.ANNOTATION, name, start_ms, dur_ms, thread=BACKEND)


def call(start_ms, name="c10d::allreduce_"):
    return event(EventKind.OP, name, start_ms, 0.1)


def step(at):
    """Two exchanges start during backward; the main thread then waits for the second, and updates."""
    return [
        event(EventKind.OP, "aten::linear", at, 20),
        call(at + 10),
        exchange(at + 10.5, 15),
        call(at + 20.5),
        exchange(at + 25.5, 10),
        event(EventKind.OP, "aten::add_", at + 35.6, 4),
    ]


def graph_of(make_step, **more):
    run = run_of(stepped(make_step, step_ms=40.0, **more))
    steps = find_steps(run)
    return build_graph(run, steps, build_ledger(run, steps))


def test_a_replay_reproduces_steps_that_wait_for_exchanges():
    graph = graph_of(step)
    assert len(graph.device) == 12
    assert (graph.device.call >= 0).all()
    assert sweep(graph).step_ns == pytest.approx(40e6, rel=1e-3)


@pytest.mark.parametrize(("factor", "step_ms"), [(0.0, 24.9), (0.5, 30.2), (2.0, 65.0)])
def test_the_step_follows_the_duration_of_the_exchanges(factor, step_ms):
    """The second exchange starts after its call at 20.5 ms, and after the first, which ends at 10.5 + 15 f ms."""
    graph = graph_of(step)
    changed = sweep(graph.with_device(dur_ns=graph.device.dur_ns * factor)).step_ns / 1e6
    assert changed == pytest.approx(step_ms, abs=0.4)


def test_code_that_runs_during_an_exchange_is_no_wait_for_it():
    def busy(at):
        return [
            event(EventKind.OP, "aten::linear", at, 20),
            call(at + 1),
            exchange(at + 1.5, 35),
            event(EventKind.OP, "aten::add_", at + 22, 4),  # 2 ms of Python before it
            event(EventKind.OP, "aten::mul_", at + 38, 1),
        ]

    graph = graph_of(busy)
    shorter = sweep(graph.with_device(dur_ns=graph.device.dur_ns * 0.0)).step_ns / 1e6
    assert shorter == pytest.approx(29.5, abs=0.5)  # 26 ms of work and Python, and what follows the wait


def test_exchanges_belong_to_calls_in_their_order_and_kind():
    events = [
        call(0),
        call(1, "c10d::broadcast_"),
        call(2),
        exchange(3, 1),  # of the first call, as a queue delays it
        exchange(4, 1, "gloo:broadcast"),
        exchange(5, 1),
    ]
    work = exchanges(run_of(events))
    assert exchange_calls(work).tolist() == [0, 1, 2]


def test_an_exchange_whose_call_was_not_recorded_has_none():
    work = exchanges(run_of([exchange(0, 1), call(2), exchange(3, 1)]))
    assert exchange_calls(work).tolist() == [-1, 1]


def test_an_exchange_without_its_call_stays_host_work_at_its_time():
    def first_exchange_only(at):
        return [
            each for each in step(at) if not (each["kind"] == EventKind.OP.value and each["name"].startswith("c10d"))
        ]

    graph = graph_of(first_exchange_only)
    assert not len(graph.device)
    assert sweep(graph).step_ns == pytest.approx(40e6, rel=1e-3)


def test_the_critical_path_goes_through_the_exchange_that_is_awaited():
    path = critical_path(sweep(graph_of(step)))
    exchange_ns = sum(segment.dur_ns for segment in path.segments if segment.kind == "communication")
    assert exchange_ns == pytest.approx(25e6, rel=0.01)  # the second one queues behind the first


def test_a_program_that_is_alone_has_no_exchanges():
    graph = graph_of(lambda at: [event(EventKind.OP, "aten::linear", at, 20)])
    assert not len(graph.device)
    assert (graph.host.awaited_op == -1).all()
    assert np.isfinite(sweep(graph).step_ns)
