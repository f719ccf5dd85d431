"""The ledger's laws: it partitions each step exactly, whatever overlaps whatever, in whatever order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.tables import EventKind
from tests.support.runs.made_runs import MS, event, loader_call, run_of, stepped

HOST = (
    EventKind.OP,
    EventKind.LAUNCH,
    EventKind.SYNC,
    EventKind.COPY_CALL,
    EventKind.ALLOC,
    EventKind.RUNTIME,
    EventKind.LOADER,
    EventKind.PYTHON,
)
DEVICE = (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET, EventKind.COLLECTIVE)
NAMES = ("ampere_sgemm_128x64_tn", "vectorized_elementwise_kernel", "aten::add", "odd <b>name</b>")
ANY_EVENT = st.builds(
    event,
    st.sampled_from(HOST + DEVICE),
    st.sampled_from(NAMES),
    st.floats(-20, 620).map(lambda ms: round(ms, 3)),
    st.floats(0, 150).map(lambda ms: round(ms, 3)),
    thread=st.integers(0, 1),
    device=st.integers(0, 1),
    stream=st.integers(0, 3),
)


def books(events, **more):
    run = run_of(events, **more)
    return build_ledger(run, find_steps(run))


def ms(book, key):
    return book.median_ns(key) / MS


@given(st.lists(ANY_EVENT, min_size=1, max_size=25))
def test_every_step_is_partitioned_exactly_and_no_part_is_negative(events):
    book = books(stepped(lambda _: []) + events)
    total = sum(book.part_ns[part.key] for part in book.parts)
    assert total.tolist() == book.step_ns.tolist()
    assert all((values >= 0).all() for values in book.part_ns.values())
    assert sum(book.total_frac(part.key) for part in book.parts) == pytest.approx(1)
    assert book.busy_frac + book.idle_frac == pytest.approx(1)


@given(st.lists(ANY_EVENT, min_size=1, max_size=15), st.randoms())
def test_the_order_of_events_does_not_matter(events, random):
    frame = stepped(lambda _: [])
    mixed = frame + events
    random.shuffle(mixed)
    one, other = books(frame + events), books(mixed)
    for part in one.parts:
        assert one.part_ns[part.key].tolist() == other.part_ns[part.key].tolist()


def test_overlapped_device_work_counts_once():
    book = books(
        stepped(
            lambda at: [
                loader_call(at, 60),  # 0-60, but the device works from 10 to 50
                event(EventKind.KERNEL, "ampere_sgemm", at + 10, 20),
                event(EventKind.KERNEL, "elementwise", at + 20, 20, stream=8),  # 10 ms of it beside the product
                event(EventKind.MEMCPY, "Memcpy HtoD (Pageable -> Device)", at + 35, 15, stream=9),  # 5 ms beside it
            ]
        )
    )
    assert [ms(book, key) for key in ("matmul", "kernels", "copies", "loader")] == [20, 10, 10, 20]
    assert ms(book, "python") == 40


def test_idle_time_goes_to_the_first_cause_in_the_fixed_order():
    book = books(
        stepped(
            lambda at: [
                event(EventKind.KERNEL, "k", at, 1),
                event(EventKind.OP, "aten::to", at + 1, 50),
                event(EventKind.COPY_CALL, "cudaMemcpyAsync", at + 10, 20),
                event(EventKind.SYNC, "cudaStreamSynchronize", at + 20, 20),
                event(EventKind.ALLOC, "cudaMalloc", at + 30, 20),
                event(EventKind.LAUNCH, "cudaLaunchKernel", at + 60, 5),
            ]
        )
    )
    shares = {key: ms(book, key) for key in ("dispatch", "copy_call", "sync", "alloc", "launch", "python")}
    assert shares == {"dispatch": 10, "copy_call": 10, "sync": 10, "alloc": 20, "launch": 5, "python": 44}


def test_short_gaps_between_calls_are_glue_and_long_ones_are_python():
    book = books(
        stepped(
            lambda at: [
                event(EventKind.KERNEL, "k", at, 10),
                event(EventKind.OP, "aten::a", at + 10, 10),
                event(EventKind.OP, "aten::b", at + 20.1, 9.9),
                event(EventKind.OP, "aten::c", at + 60, 40),
            ]
        )
    )
    assert ms(book, "glue") == pytest.approx(0.1)
    assert ms(book, "python") == 30


def test_without_a_gpu_the_cpu_is_the_device_and_operators_in_the_loader_are_no_compute():
    book = books(
        stepped(
            lambda at: [
                loader_call(at, 50),
                event(EventKind.OP, "aten::stack", at + 10, 10),
                event(EventKind.OP, "aten::linear", at + 50, 20.006),
                event(EventKind.OP, "aten::t", at + 50.001, 0.002),
                event(EventKind.OP, "aten::addmm", at + 50.004, 20),
                event(EventKind.OP, "aten::resolve_conj", at + 51, 0.001),
                event(EventKind.OP, "aten::add_", at + 70.1, 0.009),
            ]
        )
    )
    assert book.device == "cpu"
    expected = {"compute": 19.999, "loader": 50, "dispatch": 0.016, "glue": 0.094, "python": 29.891}
    assert {part.key: ms(book, part.key) for part in book.parts} == pytest.approx(expected)


def test_work_of_another_gpu_does_not_count_as_busy_time():
    book = books(
        stepped(
            lambda at: [
                event(EventKind.KERNEL, "k", at, 30, device=1),
                event(EventKind.KERNEL, "k", at + 50, 40, device=0),
            ]
        )
    )
    assert book.busy_frac == pytest.approx(0.4)


def test_triton_operators_on_the_host_are_not_device_work():
    book = books(
        stepped(lambda at: [event(EventKind.OP, "triton_poi_fused_add", at, 50), event(EventKind.KERNEL, "k", at, 10)])
    )
    assert book.busy_frac == pytest.approx(0.1)


def test_without_steps_or_events_there_is_no_ledger():
    assert books([]) is None


def test_a_ledger_of_one_step_sums_to_its_duration():
    run = run_of([event(EventKind.OP, "aten::mm", 3, 7)])
    book = build_ledger(run, find_steps(run))
    assert book.step_ns.tolist() == [7 * MS]
    assert int(np.sum([book.part_ns[part.key] for part in book.parts])) == 7 * MS
