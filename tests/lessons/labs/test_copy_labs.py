"""Notebook 07's code: what is read from runs, the sums, the race, and the machines that are made up."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.profiler import record_function

from gpulab.errors import RunError
from gpulab.lessons.labs.copies import copying, races, transfers
from gpulab.lessons.labs.machine import topology
from gpulab.lessons.labs.steps import throughput
from gpulab.run import Run
from gpulab.virtual.host.costs import HostCosts
from gpulab.virtual.session import VirtualGpu

SMALL, LARGE = 4096, 1 << 22


@pytest.fixture(scope="module")
def run() -> Run:
    """Copies of two sizes from both kinds of memory, a read, and what only looks like one."""
    with VirtualGpu("h100", "copies", host=HostCosts.reference()) as gpu:
        for pinned in (False, True):
            memory = torch.empty(LARGE, dtype=torch.uint8, pin_memory=pinned)
            for size in (SMALL, LARGE):
                for _ in range(2):
                    on_gpu = memory[:size].to("cuda", non_blocking=True)
                    torch.cuda.synchronize()
        with record_function("reads"):
            on_gpu.sum().item()
        with record_function("reads not"):
            on_gpu.sum().detach()
        with record_function("reads"):
            float(on_gpu.sum())
    assert gpu.run is not None
    return gpu.run


def test_every_copy_is_listed_once(run: Run) -> None:
    h2d_copies = [each for each in copying.host_device_copies(run) if each.to_device]
    assert [each.bytes for each in h2d_copies] == [SMALL, SMALL, LARGE, LARGE] * 2
    assert [each.pinned for each in h2d_copies] == [False] * 4 + [True] * 4
    assert sum(not each.to_device for each in copying.host_device_copies(run)) == 2  # the values that were read
    assert len(copying.host_device_copies(run, LARGE)) == 4


def test_pageable_memory_blocks_the_host_and_pinned_memory_does_not(run: Run) -> None:
    pageable, _, pinned, _ = copying.host_device_copies(run, LARGE)
    assert pageable.blocked_ns >= pageable.transfer_ns
    assert pinned.blocked_ns < pinned.transfer_ns
    for copy in copying.host_device_copies(run):
        assert copy.latency_ns >= copy.transfer_ns > 0


def test_a_curve_rises_and_its_knee_is_where_half_is_reached(run: Run) -> None:
    for pinned in (False, True):
        rates = copying.bandwidth_by_size(run, pinned)
        assert list(rates) == [SMALL, LARGE]
        assert rates[SMALL] < rates[LARGE]
    assert copying.knee_bytes(copying.bandwidth_by_size(run, True)) == LARGE
    assert copying.knee_bytes({1: 1.0, 4: 5.0, 16: 9.0, 64: 10.0}) == 4
    assert copying.knee_bytes({1: 1.0, 4: 5.0}, frac=0.1) == 1


def test_waits_are_counted_by_range(run: Run) -> None:
    assert copying.syncs_by_range(run) == {"reads": 2, "reads not": 0}
    assert copying.range_ms(run, "reads") > 0
    assert copying.range_ms(run, "nothing of the kind") == 0


def test_pinning_in_the_loop_is_the_main_threads() -> None:
    batch = torch.ones(1024, 1024)
    with VirtualGpu("h100", "fresh", host=HostCosts.reference()) as gpu:
        for _ in range(3):
            batch.pin_memory().to("cuda", non_blocking=True)
    assert gpu.run is not None
    fresh = copying.batch_copy_cost(gpu.run, 4 << 20)
    assert fresh.pinning_ms > 0
    assert fresh.total_ms == fresh.pinning_ms + max(fresh.blocked_ms, fresh.transfer_ms)
    with VirtualGpu("h100", "plain", host=HostCosts.reference()) as gpu:
        for _ in range(3):
            batch.to("cuda")
    assert gpu.run is not None
    assert copying.batch_copy_cost(gpu.run, 4 << 20).pinning_ms == 0


def test_only_reads_are_counted() -> None:
    number = torch.tensor(2.0)
    with copying.count_calls("aten::_local_scalar_dense") as count:
        number.item(), float(number), bool(number > 1), number.detach(), number + 1
    assert count.calls == 3
    number.item()
    assert count.calls == 3


def test_a_step_has_a_length_only_where_there_are_steps() -> None:
    with VirtualGpu("h100", "steps", host=HostCosts.reference()) as gpu:
        weight = torch.ones(64, 64, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(5):
            (weight @ weight).sum().backward()
            optimizer.step()
    assert gpu.run is not None
    assert throughput.step_ms(gpu.run) > 0
    with VirtualGpu("h100", "no steps", host=HostCosts.reference()) as gpu:
        pass
    assert gpu.run is not None
    with pytest.raises(RunError):
        throughput.step_ms(gpu.run)


def test_the_ways_of_a_batch() -> None:
    size, host, link = 100_000_000, 5e9, 50e9
    route_times_ms = {way: copying.route_ms(size, way, host, link) for way in copying.ROUTES}
    assert route_times_ms["plain"] == pytest.approx(20.0)  # the slower of the two, as they go hand in hand
    assert route_times_ms["ahead"] == pytest.approx(2.0)
    assert route_times_ms["kept"] == pytest.approx(22.0)
    assert route_times_ms["fresh"] == pytest.approx(22.0 + 61 * size / 2**29)
    for rate in (1e9, 20e9, 200e9):  # in whatever memory: whoever pins first can never be before who does not
        assert copying.route_ms(size, "kept", rate) > copying.route_ms(size, "plain", rate)


def in_lanes(copies: list[float], computes: list[float]) -> float:
    """An oracle in ticks: two engines that look for work at every tick; one batch may lie ready."""
    now, copied, computed, copying_left, computing_left = 0, 0, 0, 0.0, 0.0
    next_compute = 0
    while computed < len(copies):
        if not computing_left and next_compute < copied:
            computing_left, next_compute = computes[next_compute], next_compute + 1
        if not copying_left and copied < len(copies) and copied <= next_compute:
            copying_left = copies[copied]
        now += 1
        if copying_left:
            copying_left -= 1
            copied += not copying_left
        if computing_left:
            computing_left -= 1
            computed += not computing_left
    return now


def test_two_lanes_take_as_long_as_the_longer() -> None:
    assert copying.makespan_ms([1] * 5, [2] * 5, ahead=False) == 15
    assert copying.makespan_ms([1] * 5, [2] * 5, ahead=True) == 1 + 5 * 2
    assert copying.makespan_ms([3] * 5, [2] * 5, ahead=True) == 5 * 3 + 2
    generator = np.random.default_rng(1)
    for _ in range(40):
        copies, computes = ([float(each) for each in generator.integers(1, 9, 12)] for _ in range(2))
        ahead = copying.makespan_ms(copies, computes, ahead=True)
        assert ahead == in_lanes(copies, computes)
        assert max(sum(copies), sum(computes)) <= ahead <= copying.makespan_ms(copies, computes, ahead=False)


def test_ready_batches_and_the_copies_of_a_cpu() -> None:
    ready = copying.ReadyBatches(2, 3, 4)
    assert len(ready) == 2
    assert ready[0].shape == (3, 4)
    assert len(list(ready)) == 2  # type: ignore[call-overload]
    assert copying.host_copy_gb_per_s(1 << 16) > 0


RIGHT = np.arange(1, 101, dtype=np.float32)  # 400 bytes


@pytest.mark.parametrize(("queue_us", "at_us", "arrived"), [(0, 0, 0), (0, 2, 50), (0, 4, 100), (3, 4, 25), (9, 9, 0)])
def test_a_copy_fills_its_buffer_from_front_to_back(queue_us: float, at_us: float, arrived: int) -> None:
    gpu = races.SimulatedGpu(bytes_per_us=100)  # the copy takes 4 us
    host = gpu.pinned(100)
    gpu.compute(queue_us)
    gpu.fetch(host, RIGHT)
    gpu.work(at_us)
    values = gpu.read(host)
    assert races.count_wrong_values(values, RIGHT) == 100 - arrived
    assert (values[:arrived] == RIGHT[:arrived]).all()
    assert not values[arrived:].any()


def test_a_wait_covers_only_work_queued_before_it() -> None:
    gpu = races.SimulatedGpu(bytes_per_us=100)
    host = gpu.pinned(100)
    gpu.compute(10)
    gpu.fetch(host, RIGHT)
    done = gpu.Event()
    done.record()
    gpu.compute(1000)
    assert not done.query()
    done.synchronize()
    assert done.query()
    assert gpu.now_us == 14
    assert races.count_wrong_values(gpu.read(host), RIGHT) == 0
    gpu.fetch(host, -RIGHT)  # the buffer is used again: the old values stay until the new ones come
    assert races.count_wrong_values(gpu.read(host), RIGHT) == 0
    again = gpu.Event()
    again.record()
    again.synchronize()
    assert races.count_wrong_values(gpu.read(host), -RIGHT) == 0
    assert gpu.now_us == 1018
    done.synchronize()
    assert gpu.now_us == 1018  # it is over: nothing to wait for


def test_an_event_that_was_not_recorded_waits_for_nothing() -> None:
    gpu = races.SimulatedGpu()
    gpu.compute(10)
    event = gpu.Event()
    event.synchronize()
    assert (gpu.now_us, event.query()) == (0, True)


def test_a_simulated_gpu_rejects_invalid_arguments() -> None:
    with pytest.raises(ValueError, match="bytes_per_us"):
        races.SimulatedGpu(bytes_per_us=0)
    gpu = races.SimulatedGpu()
    with pytest.raises(ValueError, match="buffer of 3"):
        gpu.fetch(gpu.pinned(3), [1.0])


def test_the_invented_machines_have_their_planned_faults() -> None:
    ways = {name: topology.parse_topology(text) for name, text in topology.TOPOLOGY_TEXTS.items()}
    assert {name: way.faults for name, way in ways.items()} == {"a": (), "b": ("lanes",), "c": ("node",)}
    full_width, quarter = ways["a"].gb_per_s, ways["b"].gb_per_s
    assert full_width is not None
    assert quarter is not None
    assert full_width == pytest.approx(4 * quarter)
    assert ways["a"].gpu_cores == frozenset(range(32))


def test_an_error_names_the_missing_part() -> None:
    text = topology.TOPOLOGY_TEXTS["a"]
    with pytest.raises(ValueError, match="link width"):
        topology.parse_topology(text.replace("Link Width", "Something"))
    with pytest.raises(ValueError, match="taskset"):
        topology.parse_topology(text.replace("affinity list", "something"))
    with pytest.raises(ValueError, match="GPU 3"):
        topology.parse_topology(text.replace("-q -i 0", "-q -i 3"))
    other = topology.parse_topology(text.replace("-q -i 0", "-q -i 1"))
    assert other.gpu_cores == frozenset(range(32, 64))
    assert other.faults == ("node",)
    slower = topology.parse_topology(text.replace("Current               : 5", "Current               : 3"))
    assert slower.faults == ("generation",)
    assert topology.parse_core_list("0-2,7,9-9") == {0, 1, 2, 7, 9}


def test_machines_differ_where_their_faults_are() -> None:
    assert topology.differing_lines("a", "a") == ""
    lanes, cores = topology.differing_lines("b", "a").splitlines(), topology.differing_lines("c", "a").splitlines()
    assert [line.strip() for line in lanes] == ["$ nvidia-smi -q -i 0", "Link Width", "Current               : 4x"]
    assert cores == ["$ taskset -cp $(pgrep -f train.py)", "pid 4711's current affinity list: 32-47"]


def test_sizes_are_named_and_an_unknown_rate_is_a_dash() -> None:
    table = transfers.bandwidth_table({4096: 0.25, 1 << 20: 5.5}, {4096: 0.5, 1 << 20: 28.0}, {1 << 20: 12.345})
    assert list(table.index) == ["4 KiB", "1 MiB"]
    assert table.to_numpy().tolist() == [["0.25", "0.50", "-"], ["5.50", "28.00", "12.35"]]


def test_routes_of_a_batch_are_compared_in_rows() -> None:
    table = transfers.copy_cost_table(
        {"fresh": copying.BatchCopyCost(pinning_ms=3.0, blocked_ms=0.01, transfer_ms=0.5)}
    )
    assert table.to_numpy().tolist() == [["3.00", "0.01", "0.50", "3.50"]]
    times = transfers.relative_route_times(1 << 24, 6e9)
    assert times["plain"] == 1
    assert times["fresh"] > times["kept"] > 1 > times["ahead"]


def test_calculated_routes_have_a_row_for_each_rate() -> None:
    table = transfers.route_table(1 << 24, gb_per_s=(5.3, 9.9))
    assert list(table.index) == ["5.3 GB/s", "9.9 GB/s"]
    assert list(table.columns) == list(copying.ROUTES)
    assert table["plain"].tolist() == ["1.00", "1.00"]


def test_every_copy_into_fresh_memory_goes_into_memory_of_its_own() -> None:
    fresh = [copying.fresh_memory(SMALL) for _ in range(2)]
    assert [memory.sum() for memory in fresh] == [0, 0]
    assert copying.fastest_copy_ms(fresh) > 0
    assert [memory.sum() for memory in fresh] == [SMALL, SMALL]


def test_tensors_that_are_not_returned_differ_from_all_others() -> None:
    assert transfers.with_dtypes(None) == []


def test_the_losses_of_a_training_fall_and_are_the_same_again() -> None:
    once, again = (torch.stack(list(transfers.training_losses(50))) for _ in range(2))
    assert torch.equal(once, again)
    assert not once.requires_grad
    assert once[-10:].mean() < once[:10].mean()


def test_a_number_that_changed_its_type_is_seen() -> None:
    integers, real = [torch.tensor(1), torch.tensor(2)], [torch.tensor(1.0), torch.tensor(2.0)]
    assert transfers.with_dtypes([integers])[0]["types"] == "torch.int64"
    assert [each["types"] for each in transfers.with_dtypes([integers, [*integers, *real]])] == (
        ["torch.int64", "torch.float32, torch.int64"]
    )
