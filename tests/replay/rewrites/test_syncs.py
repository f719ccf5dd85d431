"""Waits that are not made, or in some steps only, and memory that is not asked for: as a machine without them does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.replay.rewrite import MIDDLE
from gpulab.replay.rewrites.catalogue import BY_NAME
from gpulab.replay.rewrites.host.syncs import avoidable_waits, parse_step_count
from gpulab.replay.sweep import sweep
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, on_gpu, stepped
from tests.support.runs.simulated_machine import Call, graph, run_like, step_ms
from tests.support.tiers import examples

LOGGING = [*[Call(host_us=15.0, kernel_us=25.0)] * 20, Call(waits=True), Call(host_us=300.0, kernel_us=5.0)]
ASKING = [*[Call(host_us=10.0, kernel_us=30.0), Call(waits=True)] * 12, Call(host_us=500.0, kernel_us=20.0)]
QUIET = [Call(host_us=30.0, kernel_us=5.0)] * 20
LOOPS = {"logging": LOGGING, "asking": ASKING}


def edited(name, original, value=True):
    return BY_NAME[name].edit(original, value, MIDDLE)


def silent(loop):
    """The same loop without its waits; the host does what it did before them."""
    left, spent = [], 0.0
    for call in loop:
        if call.waits:
            spent += call.host_us
        else:
            left.append(Call(host_us=call.host_us + spent, kernel_us=call.kernel_us))
            spent = 0.0
    return left


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_loop_without_waits_is_as_fast_as_one_simulated_without_them(loop):
    original = graph(run_like(loop, steps=20))
    assert sweep(edited("no_syncs", original)).step_ns / 1e6 == pytest.approx(step_ms(silent(loop)), rel=0.02)


@pytest.mark.parametrize("count", [2, 4, 10])
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_wait_in_every_nth_step_costs_the_nth_part_on_average(loop, count):
    original = graph(run_like(loop, steps=20))
    mixed = [*loop, *silent(loop) * (count - 1)]
    average_ms = step_ms(mixed, steps=20) / count
    assert sweep(edited("sync_every", original, count)).step_ns / 1e6 == pytest.approx(average_ms, rel=0.05)


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_rarer_waits_cost_less_than_all_and_more_than_none(loop):
    original = graph(run_like(loop, steps=20))
    lengths = [sweep(edited("sync_every", original, count)).step_ns for count in (1, 2, 5, 50, 100_000)]
    assert lengths[0] == sweep(original).step_ns
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == pytest.approx(sweep(edited("no_syncs", original)).step_ns, rel=1e-3)


def test_both_ways_of_doing_without_waits_have_one_bound():
    original = graph(run_like(LOGGING, steps=20))
    one, other = (sweep(BY_NAME[name].best_case(original, 50)).step_ns for name in ("no_syncs", "sync_every"))
    assert one == other <= sweep(edited("no_syncs", original)).step_ns


# Which waits are meant.


def reading(op, *, size=4, way="Memcpy DtoH (Device -> Pageable)"):
    """Steps of one kernel and one copy, inside an operator, that the host waits for."""

    def step(at):
        number = round(at * 10)
        return [
            event(EventKind.LAUNCH, "cudaLaunchKernel", at + 0.5, 0.01, correlation=number + 1),
            event(EventKind.KERNEL, "ampere_sgemm", at + 0.52, 7.0, correlation=number + 1),
            event(EventKind.OP, op, at + 1.0, 6.6),
            event(EventKind.COPY_CALL, "cudaMemcpyAsync", at + 1.1, 0.01, correlation=number + 2),
            event(EventKind.MEMCPY, way, at + 7.53, 0.01, correlation=number + 2, size=size),
            event(EventKind.SYNC, "cudaStreamSynchronize", at + 1.12, 6.43),
        ]

    return graph(on_gpu(stepped(step, count=6, step_ms=10.0)))


def test_a_value_that_is_read_takes_its_copy_along_when_it_goes():
    original = reading("aten::item")
    left = edited("no_syncs", original)
    reads = avoidable_waits(original).d2h_copies
    assert len(reads) == 6
    assert (left.device.dur_ns[reads] == 0).all()
    assert (left.host.awaited_op[avoidable_waits(original).nodes] == -1).all()
    assert BY_NAME["no_syncs"].refusal_reason(original, True) is None


@pytest.mark.parametrize("op", ["aten::nonzero", "aten::masked_select", "aten::unique_dim"])
def test_a_wait_for_a_data_dependent_size_stays(op):
    original = reading(op)
    assert (edited("no_syncs", original).host.awaited_op == original.host.awaited_op).all()
    assert "result sizes" in BY_NAME["no_syncs"].refusal_reason(original, True)


def test_a_wait_for_an_h2d_copy_is_left_to_pin_memory():
    original = reading("aten::copy_", way="Memcpy HtoD (Pageable -> Device)")
    assert (edited("no_syncs", original).host.awaited_op == original.host.awaited_op).all()
    assert "read a value" in BY_NAME["no_syncs"].refusal_reason(original, True)


def test_a_loop_that_never_waits_is_refused():
    assert "read a value" in BY_NAME["no_syncs"].refusal_reason(graph(run_like(QUIET)), True)
    assert BY_NAME["sync_every"].refusal_reason(graph(run_like(QUIET)), 50)


@pytest.mark.parametrize("typed", ["often", "0", "2.5"])
def test_a_number_of_steps_is_a_positive_integer(typed):
    with pytest.raises(ValueError, match=typed):
        parse_step_count(typed)
    assert parse_step_count("7") == 7


# Memory.


def asking_for_memory(free_ms=3.0):
    """Steps in which memory is given back to the driver, which waits for the kernel, and asked for again."""

    def step(at):
        number = round(at * 10)
        return [
            event(EventKind.LAUNCH, "cudaLaunchKernel", at + 0.5, 0.01, correlation=number + 1),
            event(EventKind.KERNEL, "ampere_sgemm", at + 0.52, 5.0, correlation=number + 1),
            event(EventKind.ALLOC, "cudaFree", at + 1.0, 4.53),
            event(EventKind.ALLOC, "cudaMalloc", at + 5.6, free_ms),
        ]

    return graph(on_gpu(stepped(step, count=8, step_ms=10.0)))


def test_without_allocation_calls_their_time_and_the_waits_in_them_go():
    original = asking_for_memory()
    left = edited("no_alloc", original)
    # 10 ms less 4.53 in cudaFree, whose wait goes, and 3.0 in cudaMalloc; the kernel of 5 ms then sets the pace.
    assert sweep(original).step_ns / 1e6 == pytest.approx(10.0)
    assert sweep(left).step_ns / 1e6 == pytest.approx(5.0, abs=0.01)
    assert np.median(sweep(left).host_steps_ns) / 1e6 == pytest.approx(10.0 - 4.53 - 3.0, abs=0.01)
    assert BY_NAME["no_alloc"].refusal_reason(original, True) is None


def test_a_loop_without_cuda_malloc_is_refused():
    assert "cudaMalloc" in BY_NAME["no_alloc"].refusal_reason(graph(run_like(QUIET)), True)


calls = st.lists(
    st.builds(Call, host_us=st.floats(1, 300), kernel_us=st.floats(1, 400), waits=st.booleans()),
    min_size=1,
    max_size=20,
).filter(lambda some: any(not call.waits for call in some))


@examples(60)
@given(calls, st.integers(1, 30))
def test_waits_taken_away_never_make_a_step_longer_and_never_beat_the_bound(loop, count):
    original = graph(run_like(loop, steps=8))
    now = sweep(original).step_ns
    none, some = sweep(edited("no_syncs", original)).step_ns, sweep(edited("sync_every", original, count)).step_ns
    bound = sweep(BY_NAME["no_syncs"].best_case(original, True)).step_ns
    assert bound <= none + 1
    assert none <= some * 1.001 + 1
    assert some <= now * 1.001 + 1
