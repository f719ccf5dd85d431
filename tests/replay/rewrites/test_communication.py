"""Communication: fewer and larger buckets, overlap with backward, stragglers, rarer updates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.replay.graph.build import build_graph
from gpulab.replay.rewrite import MIDDLE, Draw
from gpulab.replay.rewrites.catalogue import BY_NAME
from gpulab.replay.rewrites.ranks.collectives import gradient_collectives
from gpulab.replay.rewrites.ranks.communication import parse_mib
from gpulab.replay.sweep import sweep
from gpulab.run import Optimizer
from gpulab.tables import EventKind
from tests.support.runs.made_runs import (
    NO_WORKERS,
    collective,
    collective_columns,
    event,
    loader_call,
    mark,
    rank_of,
    run_of,
)
from tests.support.tiers import examples

MS_PER = 1e6
ELEMENTS = 1 << 20  # of four bytes: 4 MiB
COUNT = 6


class Loop:
    """A training loop on one stream: forward, backward, all-reduces one after another, optimizer; bound by the GPU."""

    def __init__(self, exchanged_ms, *, backward_ms=20.0, update_ms=4.0, elements=ELEMENTS, late=None):
        self.exchanged_ms, self.backward_ms, self.update_ms = exchanged_ms, backward_ms, update_ms
        self.elements, self.late = elements, late or {}

    def events(self):
        events, number, gpu, host = [], 0, 0.0, 0.0
        for step in range(COUNT):
            begin = host
            host += 0.1
            work = [("forward", 10.0), ("backward", self.backward_ms)]
            work += [("exchange", ms) for ms in self.exchanged_ms] + [("update", self.update_ms)]
            for position, (phase, length) in enumerate(work):
                number += 1
                length += self.late.get((step, position), 0.0)
                gpu_start = max(host + 0.01, gpu)
                gpu = gpu_start + length
                events += self._launch(phase, number, host, gpu_start, length)
                host += 0.1
            end = max(gpu, host) + 0.01  # the loop waits for the GPU at the end of each step
            events.append(event(EventKind.SYNC, "cudaStreamSynchronize", host, end - host))
            host = end
            events.append(event(EventKind.STEP, f"ProfilerStep#{step}", begin, host - begin))
        return events

    def _launch(self, phase, number, at, gpu_start, length):
        call = event(EventKind.LAUNCH, "cudaLaunchKernel", at + 0.02, 0.02, correlation=number)
        if phase == "exchange":
            name = "ncclDevKernel_AllReduce_Sum_f32_RING"
            size = self.elements if isinstance(self.elements, int | None) else self.elements[number]
            moves = collective_columns(size) if size else None
            return [call, collective(name, gpu_start, length, stream=7, correlation=number, moves=moves)]
        around = {
            "backward": [event(EventKind.OP, "autograd::engine::evaluate_function: MmBackward0", at + 0.01, 0.05)],
            "update": [event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 0.005, 0.06)],
        }
        return [
            *around.get(phase, []),
            call,
            event(EventKind.KERNEL, "ampere_sgemm", gpu_start, length, correlation=number),
        ]

    def graph(self, **fields):
        run = rank_of(self.events(), **fields)
        run_steps = find_steps(run)
        return build_graph(run, run_steps, build_ledger(run, run_steps))


def edited(name, graph, value=True, draw=MIDDLE):
    return BY_NAME[name].edit(graph, value, draw)


def inside(graph):
    """The collectives of the interior steps."""
    collectives = gradient_collectives(graph)
    return collectives.ops[graph.step_of[collectives.call] >= 0]


def step_ms(graph):
    return sweep(graph).step_ns / MS_PER


# Fewer, larger buckets.


def test_collectives_in_one_bucket_pay_their_latency_once():
    graph = Loop([2.0] * 6).graph()
    merged = edited("bucket_mb", graph, 8)  # 4 MiB each: two to a bucket
    ops = inside(graph)
    dur_ns = merged.device.dur_ns[ops]
    assert (dur_ns > 0).sum() == len(ops) / 2
    for draw in (Draw(default_position=0.0), MIDDLE, Draw(default_position=1.0)):
        latency = draw.ratio("latency of a collective", 10_000, 40_000)
        gained = (graph.device.dur_ns - edited("bucket_mb", graph, 8, draw).device.dur_ns)[ops].sum()
        assert gained == pytest.approx(latency * len(ops) / 2)


def test_a_single_bucket_is_sent_at_the_time_of_the_last_collective():
    graph = Loop([2.0] * 6).graph()
    ops = inside(graph)
    dur_ns = edited("bucket_mb", graph, 1000).device.dur_ns[ops].reshape(-1, 6)
    assert (dur_ns[:, :-1] == 0).all()
    assert (dur_ns[:, -1] > 0).all()


def test_only_larger_buckets_with_known_sizes_can_be_predicted():
    refusal = BY_NAME["bucket_mb"].refusal_reason
    assert refusal(Loop([2.0] * 6).graph(), 8) is None
    assert "4 MiB" in refusal(Loop([2.0] * 6).graph(), 7)
    assert "sizes" in refusal(Loop([2.0] * 6, elements=None).graph(), 8)
    assert "gradients" in refusal(Loop([]).graph(), 8)


@pytest.mark.parametrize(("typed", "expected"), [("25", 25), ("12.5", 12.5)])
def test_a_size_is_a_number_of_mib(typed, expected):
    assert parse_mib(typed) == expected
    for invalid in ("many", "0", "-3", "nan"):
        with pytest.raises(ValueError, match="MiB"):
            parse_mib(invalid)


# Overlap with backward.


def test_backward_hides_all_communication_except_the_last_bucket():
    graph = Loop([2.0] * 4, backward_ms=40.0).graph()  # 8 ms of communication, 24-36 ms of backward left
    best = edited("overlap", graph, draw=Draw(default_position=0.0))
    assert step_ms(graph) - step_ms(best) == pytest.approx(6.0, abs=0.05)
    worst = edited("overlap", graph, draw=Draw(default_position=1.0))
    assert step_ms(worst) - step_ms(best) == pytest.approx(0.15 * 6.0, abs=0.05)


def test_communication_longer_than_backward_remains_exposed():
    graph = Loop([10.0] * 6, backward_ms=20.0).graph()
    best = edited("overlap", graph, draw=Draw(default_position=0.0))
    assert step_ms(graph) - step_ms(best) == pytest.approx(0.9 * 20.0, abs=0.05)


def test_overlap_is_refused_if_communication_is_hidden_already():
    events = Loop([]).events()
    marks = [step_mark for step_mark in events if step_mark["kind"] == EventKind.STEP]
    for number, step_mark in enumerate(marks):
        at, call = step_mark["start_ns"] / MS_PER + 12.0, 900 + number
        events.append(
            event(EventKind.LAUNCH, "cudaLaunchKernel", step_mark["start_ns"] / MS_PER + 0.15, 0.01, correlation=call)
        )
        name = "ncclDevKernel_AllReduce_Sum_f32_RING"
        events.append(collective(name, at, 3.0, correlation=call, moves=collective_columns(ELEMENTS)))
    run = rank_of(sorted(events, key=lambda step_mark: (step_mark["start_ns"], -step_mark["dur_ns"])))
    run_steps = find_steps(run)
    graph = build_graph(run, run_steps, build_ledger(run, run_steps))
    assert "hidden" in BY_NAME["overlap"].refusal_reason(graph, True)


# Stragglers.


def test_exactly_the_time_of_a_late_rank_is_removed():
    late = {(step, 3): 5.0 for step in (1, 2, 3)}  # the second exchange of three steps waits 5 ms for another rank
    graph, prompt = Loop([2.0] * 4, late=late).graph(), Loop([2.0] * 4).graph()
    assert step_ms(edited("no_straggler", graph)) == pytest.approx(step_ms(prompt), rel=0.01)
    assert np.allclose(edited("no_straggler", prompt).device.dur_ns, prompt.device.dur_ns)


def test_no_straggler_needs_enough_equal_collectives():
    refusal = BY_NAME["no_straggler"].refusal_reason
    assert refusal(Loop([2.0]).graph(), True) is None  # one in each of six steps
    assert "5 times" in refusal(Loop([2.0], elements=range(1, 99)).graph(), True)
    assert "all-reduce" in refusal(Loop([]).graph(), True)


# Rarer updates.


@pytest.mark.parametrize("count", [2, 4, 8])
def test_updates_in_every_nth_step_cost_one_nth_on_average(count):
    graph = Loop([2.0] * 4, update_ms=8.0).graph()
    without_updates = step_ms(Loop([], update_ms=0.0).graph())
    with_updates = step_ms(graph)
    best = step_ms(edited("accumulate", graph, count, Draw(default_position=0.0)))
    adding = 0.3 * 8.0 * (1 - 1 / count)  # one memory pass, relative to plain SGD
    assert best == pytest.approx(without_updates + (with_updates - without_updates) / count + adding, abs=0.35)
    assert step_ms(edited("accumulate", graph, 1)) == with_updates


def test_accumulating_gradients_costs_the_host_one_operator_per_tensor():
    graph = Loop([], update_ms=0.5, backward_ms=0.1).graph(optimizers=(Optimizer(kind="SGD", tensors=1000),))
    few = Loop([], update_ms=0.5, backward_ms=0.1).graph(optimizers=(Optimizer(kind="SGD", tensors=1),))
    assert step_ms(edited("accumulate", graph, 4)) - step_ms(edited("accumulate", few, 4)) == pytest.approx(
        999 * 0.008 * 0.75, rel=0.05
    )


def cpu_loop(update_ms):
    events, marks, at = [], [], 0.0
    for _ in range(10):
        events += [loader_call(at, 2.0), event(EventKind.OP, "aten::mm", at + 2.0, 20.0)]
        events.append(event(EventKind.ANNOTATION, "Optimizer.step#Adam.step", at + 22.0, update_ms))
        events.append(event(EventKind.OP, "aten::_foreach_add_", at + 22.0, update_ms))
        marks.append(mark(at, 2.0))
        at += 22.0 + update_ms
    run = run_of(events, marks=marks, loaders=[NO_WORKERS])
    run_steps = find_steps(run)
    return build_graph(run, run_steps, build_ledger(run, run_steps))


def test_on_a_cpu_rarer_updates_save_the_time_of_their_operators():
    graph = cpu_loop(8.0)
    assert step_ms(graph) == pytest.approx(30.0)
    assert step_ms(edited("accumulate", graph, 4, Draw(default_position=0.0))) == pytest.approx(
        22.0 + 2.0 + 0.3, abs=0.01
    )
    assert step_ms(BY_NAME["accumulate"].best_case(graph, 4)) == pytest.approx(22.0, abs=0.01)


def test_accumulation_is_refused_without_optimizer_and_all_reduce():
    run = run_of([event(EventKind.STEP, f"ProfilerStep#{n}", 10 * n, 10) for n in range(4)], windows=[(0, 40)])
    assert build_ledger(run, find_steps(run)) is not None
    graph = build_graph(run, find_steps(run), build_ledger(run, find_steps(run)))
    assert "optimizer" in BY_NAME["accumulate"].refusal_reason(graph, 4)


@examples(40)
@given(
    st.lists(st.floats(0.05, 12), min_size=2, max_size=8),
    st.floats(0.5, 40),
    st.integers(5, 200),
    st.floats(0, 1),
    st.dictionaries(st.tuples(st.integers(0, COUNT - 1), st.integers(2, 6)), st.floats(0, 9), max_size=8),
)
def test_cheaper_communication_never_lengthens_a_step_and_never_beats_its_bound(
    exchanged_ms, backward_ms, size, at, late
):
    graph = Loop(exchanged_ms, backward_ms=backward_ms, late=late).graph()
    now = sweep(graph).step_ns
    for name, value in (("bucket_mb", size), ("overlap", True), ("no_straggler", True)):
        then = sweep(edited(name, graph, value, Draw(default_position=at))).step_ns
        assert sweep(BY_NAME[name].best_case(graph, value)).step_ns <= then + 1, name
        assert then <= now + 1, name


def test_a_real_rank_waits_for_stragglers_at_collectives(recorded):
    import gpulab

    run = gpulab.load(recorded("a100_ddp_8ranks_rank.json.gz"))
    run_steps = find_steps(run)
    graph = build_graph(run, run_steps, build_ledger(run, run_steps))
    prompt = edited("no_straggler", graph)
    assert sweep(prompt).step_ns < 0.97 * sweep(graph).step_ns
    assert (prompt.device.dur_ns <= graph.device.dur_ns).all()
    assert np.count_nonzero(prompt.device.dur_ns < graph.device.dur_ns) <= len(gradient_collectives(graph)) + 100
