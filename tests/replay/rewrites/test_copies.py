"""Copies to the GPU: pinned they take their bytes over the link and hold nobody up; prefetched they hide."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.replay.graph.graph import NONE, NodeKind
from gpulab.replay.rewrite import MIDDLE, Draw
from gpulab.replay.rewrites.catalogue import BY_NAME
from gpulab.replay.rewrites.copies.pin_and_prefetch import COPY_LIMIT, copy_waits, h2d_copies, link_bytes_per_s
from gpulab.replay.sweep import sweep
from gpulab.run import Loader, Machine
from gpulab.tables import EventKind
from tests.support.runs.made_runs import GPUS, NO_WORKERS, event, loader_call, on_gpu, stepped
from tests.support.runs.simulated_machine import graph
from tests.support.tiers import examples

PAGEABLE, PINNED = "Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)"
BATCH_BYTES = 24_000_000  # 2 ms at 12 GB/s
GEN3 = Machine(gpus=(dataclasses.replace(GPUS["V100"], link_generation_max=3, link_width_max=16),), cores_allowed=8.0)
WORKERS = Loader(workers=4, batch_size=32)
CALL_MS, LATENCY_MS, RETURN_MS = 0.01, 0.008, 0.005


def simulated(copy_ms, kernel_ms, loads_ms, *, blocking, overlapped=False, count=8):
    """A loop that loads, copies and computes: when each call and each work begins and ends, and the pace in the end.

    `other`: the copy has a stream of its own, and the kernel waits for it.
    """
    host, gpu, copier, step_ends = 0.0, 0.0, 0.0, []
    for _ in range(count):
        begin = host
        call = host + loads_ms
        copied = max(call + LATENCY_MS, copier if overlapped else gpu) + copy_ms
        over = max(call + CALL_MS, copied + RETURN_MS) if blocking else call + CALL_MS
        launch = over + 0.02
        kernel = max(launch + LATENCY_MS, gpu, copied)
        copier, gpu, host = copied, kernel + kernel_ms, launch + CALL_MS
        if not overlapped:
            gpu = max(gpu, copied)
        step_ends.append((begin, call, copied, over, launch, kernel, host, gpu))
    half = count // 2
    pace = max(step_ends[-1][side] - step_ends[half][side] for side in (6, 7)) / (count - 1 - half)
    return step_ends, pace


def copying(copy_ms=8.0, kernel_ms=20.0, *, name=PAGEABLE, size=BATCH_BYTES, blocking=True, loads_ms=10.0, **more):
    """The recording of such a loop."""
    events = []
    for number, (begin, call, copied, over, launch, kernel, end, _) in enumerate(
        simulated(copy_ms, kernel_ms, loads_ms, blocking=blocking)[0]
    ):
        one, other = 2 * number + 1, 2 * number + 2
        events.append(event(EventKind.STEP, f"ProfilerStep#{number}", begin, end - begin))
        events += [loader_call(begin, loads_ms)] if loads_ms else []
        events += [
            event(EventKind.COPY_CALL, "cudaMemcpyAsync", call, CALL_MS, correlation=one),
            event(EventKind.MEMCPY, name, copied - copy_ms, copy_ms, correlation=one, size=size),
            event(EventKind.LAUNCH, "cudaLaunchKernel", launch, CALL_MS, correlation=other),
            event(EventKind.KERNEL, "ampere_sgemm", kernel, kernel_ms, correlation=other),
        ]
        if blocking:
            events.append(event(EventKind.SYNC, "cudaStreamSynchronize", call + CALL_MS, over - call - CALL_MS))
    more.setdefault("machine", GEN3)
    return on_gpu(events, **more)


def edited(name, original, draw=MIDDLE):
    return BY_NAME[name].edit(original, True, draw)


def test_a_pinned_copy_takes_its_bytes_over_the_link():
    original = graph(copying(loaders=(WORKERS,)))
    pinned = edited("pin_memory", original)
    rate, is_recorded = link_bytes_per_s(original)
    assert is_recorded
    assert rate == 12e9
    copy_ns = pinned.device.dur_ns[h2d_copies(original).ops]
    assert copy_ns == pytest.approx(BATCH_BYTES / rate * 1e9, rel=0.05)
    best = edited("pin_memory", original, Draw(default_position=0.0)).device.dur_ns[h2d_copies(original).ops]
    worst = edited("pin_memory", original, Draw(default_position=1.0)).device.dur_ns[h2d_copies(original).ops]
    assert (best < copy_ns).all()
    assert (copy_ns < worst).all()


def test_a_copy_that_is_as_fast_as_the_link_already_is_not_made_slower():
    original = graph(copying(copy_ms=1.0, loaders=(WORKERS,)))
    assert (edited("pin_memory", original, Draw(default_position=1.0)).device.dur_ns <= original.device.dur_ns).all()


def test_nobody_waits_for_a_pinned_copy_and_the_synchronisation_is_not_called():
    original = graph(copying(loaders=(WORKERS,)))
    freed = copy_waits(original)
    assert (original.host.kind[freed] == NodeKind.SYNC).all()
    assert len(freed) == 8
    pinned = edited("pin_memory", original)
    assert (pinned.host.awaited_op[freed] == NONE).all()
    assert (pinned.host.call_ns[freed] == 0).all()


LOOPS = [(8.0, 30.0, 10.0), (8.0, 5.0, 20.0), (20.0, 10.0, 1.0), (3.0, 50.0, 40.0)]


@pytest.mark.parametrize(("copy_ms", "kernel_ms", "loads_ms"), LOOPS)
def test_a_loop_with_pinned_batches_is_as_fast_as_one_simulated_with_them(copy_ms, kernel_ms, loads_ms):
    original = graph(copying(copy_ms, kernel_ms, loads_ms=loads_ms, loaders=(WORKERS,)))
    pinned = edited("pin_memory", original)
    taken_ms = float(pinned.device.dur_ns[h2d_copies(original).ops[0]] / 1e6)
    _, before = simulated(copy_ms, kernel_ms, loads_ms, blocking=True)
    _, after = simulated(taken_ms, kernel_ms, loads_ms, blocking=False)
    assert sweep(original).step_ns / 1e6 == pytest.approx(before, rel=0.01)
    assert sweep(pinned).step_ns / 1e6 == pytest.approx(after, rel=0.01)
    assert after < before


@pytest.mark.parametrize(("copy_ms", "kernel_ms", "loads_ms"), LOOPS)
def test_a_loop_that_prefetches_is_as_fast_as_one_simulated_with_a_second_stream(copy_ms, kernel_ms, loads_ms):
    original = graph(copying(copy_ms, kernel_ms, name=PINNED, blocking=False, loads_ms=loads_ms))
    _, before = simulated(copy_ms, kernel_ms, loads_ms, blocking=False)
    _, after = simulated(copy_ms, kernel_ms, loads_ms, blocking=False, overlapped=True, count=40)
    assert sweep(original).step_ns / 1e6 == pytest.approx(before, rel=0.01)
    assert sweep(edited("prefetch", original)).step_ns / 1e6 == pytest.approx(after, rel=0.01)


def test_what_is_remembered_of_a_run_does_not_depend_on_what_was_asked_first():
    original = graph(copying(loaders=(WORKERS,)))
    pinned = edited("pin_memory", original)
    again = BY_NAME["no_syncs"].edit(pinned, True, MIDDLE)  # asked of the edited graph first
    assert sweep(again).step_ns == sweep(pinned).step_ns
    assert len(copy_waits(original)) == 8
    assert (BY_NAME["no_syncs"].edit(original, True, MIDDLE).host.awaited_op == original.host.awaited_op).all()


def test_a_user_who_waits_later_for_the_same_copy_keeps_his_wait():
    def step(at):
        number = round(at * 10)
        return [
            event(EventKind.COPY_CALL, "cudaMemcpyAsync", at + 1, 0.02, correlation=number + 1),
            event(EventKind.MEMCPY, PAGEABLE, at + 1.01, 8, correlation=number + 1, size=BATCH_BYTES),
            *[event(EventKind.SYNC, "cudaEventQuery", at + 1.1 + each / 10, 0.01) for each in range(5)],
            event(EventKind.SYNC, "cudaDeviceSynchronize", at + 3, 6.02),
        ]

    original = graph(on_gpu(stepped(step, count=6, step_ms=20.0), machine=GEN3))
    late = np.flatnonzero(original.host.awaited_op >= 0)
    assert len(late)
    assert (edited("pin_memory", original).host.awaited_op[late] >= 0).all()


def test_without_workers_the_main_thread_pays_for_pinning_and_with_workers_a_thread_does():
    alone, helped = graph(copying(loaders=(NO_WORKERS,))), graph(copying(loaders=(WORKERS,)))

    def added(original):
        return (edited("pin_memory", original).host.before_ns["loader"] - original.host.before_ns["loader"]).sum()

    assert added(helped) == 0
    assert 8 * BATCH_BYTES / 12 < added(alone) < 8 * BATCH_BYTES / 4  # bytes over GB/s are ns


@pytest.mark.parametrize(("source", "pays"), [("measured", False), ("virtual", False), ("recorded", True)])
def test_without_a_loader_data_are_pinned_once_and_no_step_pays_unless_a_loader_may_not_have_been_seen(source, pays):
    run = copying(loaders=())
    original = graph(dataclasses.replace(run, source=dataclasses.replace(run.source, how=source)))

    def added(draw):
        return (edited("pin_memory", original, draw).host.before_ns["loader"] - original.host.before_ns["loader"]).sum()

    assert (added(MIDDLE) > 0) == pays
    assert 0 <= added(Draw(default_position=0.0)) <= added(MIDDLE) < added(Draw(default_position=1.0))
    assert added(Draw(default_position=1.0)) == pytest.approx(8 * BATCH_BYTES / 4, rel=0.01), "made anew in each step"


def test_a_larger_batch_is_pinned_and_copied_for_longer():
    original = graph(copying(loaders=(NO_WORKERS,)))
    larger = BY_NAME["batch"].edit(original, "x3", MIDDLE)
    once, thrice = (edited("pin_memory", some) for some in (original, larger))
    copies = h2d_copies(original).ops
    assert thrice.device.dur_ns[copies] == pytest.approx(3 * once.device.dur_ns[copies], rel=0.01)

    def pinning(before, after):
        return (after.host.before_ns["loader"] - before.host.before_ns["loader"]).sum()

    assert pinning(larger, thrice) == pytest.approx(3 * pinning(original, once), rel=0.01)


def test_a_step_is_never_shorter_than_its_copies():
    original = graph(copying(copy_ms=30.0, kernel_ms=5.0, name=PINNED, blocking=False, loads_ms=0.0))
    hidden = edited("prefetch", original)
    assert hidden.limits_ns[COPY_LIMIT] == pytest.approx(30e6)
    assert sweep(hidden).step_ns == pytest.approx(30e6)


def test_the_link_is_that_of_the_gpu_where_the_driver_did_not_tell_and_the_range_is_wider():
    told = graph(copying(loaders=(WORKERS,)))
    untold = graph(copying(loaders=(WORKERS,), machine=Machine(gpus=(GPUS["H100"],), cores_allowed=8.0)))
    assert link_bytes_per_s(untold) == (3.1e9 * 16, False)

    def spread(original):
        ends = [edited("pin_memory", original, Draw(default_position=at)).device.dur_ns.min() for at in (0.0, 1.0)]
        return ends[1] / ends[0]

    assert spread(untold) > spread(told) > 1


@pytest.mark.parametrize(
    ("name", "run", "why"),
    [
        ("pin_memory", {"name": PINNED, "blocking": False}, "pageable memory"),
        ("pin_memory", {"size": -1}, "sizes"),
        ("prefetch", {"name": "Memcpy DtoD (Device -> Device)", "blocking": False}, "no step copies"),
    ],
)
def test_unpredictable_copies_are_refused_with_a_reason(name, run, why):
    assert why in BY_NAME[name].refusal_reason(graph(copying(**run)), True)


@examples(40)
@given(
    copy_ms=st.floats(0.5, 40),
    kernel_ms=st.floats(0.5, 60),
    loads_ms=st.floats(0, 40),
    size=st.integers(1, 10**9),
    name=st.sampled_from([PAGEABLE, PINNED]),
    blocking=st.booleans(),
    at=st.floats(0, 1),
)
def test_hiding_copies_is_never_worse_than_pinning_them_nor_better_than_free_ones(**some):
    draw = Draw(default_position=some.pop("at"))
    original = graph(copying(loaders=(WORKERS,), **some))
    pinned, hidden = (sweep(edited(name, original, draw)).step_ns for name in ("pin_memory", "prefetch"))
    free = sweep(BY_NAME["prefetch"].best_case(original, True)).step_ns
    now = sweep(original).step_ns
    assert free <= hidden + 1
    assert hidden <= pinned * 1.001 + 1
    assert pinned <= now * 1.001 + 1


def test_the_first_pair_of_resnet_runs_tells_why_pinning_alone_gives_nothing(recorded):
    import gpulab

    original = graph(gpulab.load(recorded("v100_resnet50_workers0.json.gz")))
    copies = h2d_copies(original)
    assert copies.pageable.all()
    copy_ns = edited("pin_memory", original).device.dur_ns[copies.ops] / np.maximum(copies.recorded_ns, 1)
    assert (copy_ns <= 1).all()
    # The host builds the batches: it gains the copies and loses the pinning.
    assert 0.98 < sweep(edited("pin_memory", original)).step_ns / sweep(original).step_ns < 1.02
