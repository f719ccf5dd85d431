"""Bandwidths of collectives: against the bytes that a ring sends, and the transfer times of the simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpulab.analysis.ranks.bandwidth import bandwidths, bus_factor
from gpulab.hardware.lookup import resolve
from gpulab.run import Gpu, Machine
from tests.support.runs.mesh_jobs import Exchange, mesh_job

SXM, PCIE = "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"
ALL = tuple(range(4))


def on_host(runs, name=SXM, *, hosts=("a",), gpus=8):
    """The same ranks on these hosts, each of whose machines lists these GPUs."""
    listed = tuple(Gpu(index=index, name=name, multiprocessors=108) for index in range(gpus))
    return [
        replace(run, machine=Machine(gpus=listed), facts={**run.facts, "host": hosts[index * len(hosts) // len(runs)]})
        for index, run in enumerate(runs)
    ]


def exchanging(kind="all-reduce", elements=5_000_000, transfer_ms=5.0, late_ms=0.0, members=ALL):
    exchange = Exchange("0", members, transfer_ms, elements, kind)
    return mesh_job(lambda step: [(lambda rank: 30.0 + late_ms * (rank == step % 4), [exchange])], ranks=4).runs


def ring_bytes(kind, size, ranks):
    """What a rank sends in a ring, chunk by chunk: the definition behind the factors of nccl-tests."""
    chunk = size / ranks
    rounds = ranks - 1
    reducing = [chunk for _ in range(rounds)] if kind in ("all-reduce", "reduce-scatter") else []
    gathering = [chunk for _ in range(rounds)] if kind in ("all-reduce", "all-gather") else []
    return sum(reducing) + sum(gathering)


@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "reduce-scatter"])
@pytest.mark.parametrize("ranks", [2, 3, 8, 512])
def test_bus_bandwidth_is_what_a_rank_of_a_ring_sends(kind, ranks):
    assert bus_factor(kind, ranks) == pytest.approx(ring_bytes(kind, 1.0, ranks))


@pytest.mark.parametrize("kind", ["broadcast", "reduce", "send-receive"])
def test_data_that_passes_each_link_once_has_equal_bandwidths(kind):
    assert bus_factor(kind, 8) == 1


@pytest.mark.parametrize("late_ms", [0.0, 25.0])
@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "reduce-scatter"])
def test_the_bandwidth_is_that_of_the_transfer_however_long_ranks_wait(kind, late_ms):
    (entry,) = bandwidths(exchanging(kind, late_ms=late_ms))
    assert entry.kind == kind
    assert entry.algorithm_bytes_per_s == pytest.approx(20e6 / 5e-3)
    assert entry.bus_bytes_per_s == pytest.approx(ring_bytes(kind, 20e6, 4) / 5e-3)
    assert not entry.is_lower_limit


def test_of_some_ranks_only_a_lower_limit_is_known():
    (entry,) = bandwidths(exchanging(late_ms=25.0)[:2])
    assert entry.is_lower_limit
    assert entry.algorithm_bytes_per_s <= 20e6 / 5e-3 * (1 + 1e-9)


def test_small_and_large_collectives_are_separate():
    exchanges = [Exchange("0", ALL, 0.1, 1_000), Exchange("0", ALL, 8.0, 50_000_000)]
    made = mesh_job(lambda step: [(lambda rank: 30.0, exchanges)], ranks=4)
    small, large = sorted(bandwidths(made.runs), key=lambda entry: entry.min_bytes)
    assert (small.max_bytes, large.min_bytes) == (4_000, 200_000_000)
    assert (small.is_large, large.is_large) == (False, True)
    assert small.count == large.count == 6


@pytest.mark.parametrize(
    ("name", "link", "speed"),
    [(SXM, "NVLink", resolve("a100").nvlink_bytes_per_s), (PCIE, "PCIe 4", resolve("a100-pcie").link_bytes_per_s)],
    ids=["SXM", "PCIe"],
)
def test_ranks_of_one_host_use_the_link_of_their_gpus(name, link, speed):
    (entry,) = bandwidths(on_host(exchanging(), name))
    assert entry.link.name == link
    assert entry.link_frac == pytest.approx(6e9 / speed)


def test_the_speed_of_a_network_is_unknown_until_it_is_passed():
    runs = on_host(exchanging(), hosts=("a", "b"))
    (unknown,) = bandwidths(runs)
    assert (unknown.link.name, unknown.link_frac) == ("unknown", None)
    assert "2 hosts" in unknown.link.reason
    (network,) = bandwidths(runs, network_bytes_per_s=12e9)
    assert (network.link.name, network.link_frac) == ("network", pytest.approx(0.5))


def test_a_passed_network_does_not_replace_the_link_inside_a_host():
    (entry,) = bandwidths(on_host(exchanging()), network_bytes_per_s=12e9)
    assert entry.link.name == "NVLink"


def test_a_group_inside_a_host_uses_its_link_though_the_job_has_two_hosts():
    pairs = [Exchange("p", (0, 1)), Exchange("q", (2, 3)), Exchange("all", ALL)]
    made = mesh_job(lambda step: [(lambda rank: 30.0, pairs)], ranks=4)
    links = {entry.group: entry.link.name for entry in bandwidths(on_host(made.runs, hosts=("a", "b")))}
    assert links == {"p": "NVLink", "q": "NVLink", "all": "unknown"}


def test_unlisted_gpus_hosts_and_cpus_leave_the_link_unknown_with_a_reason():
    runs = exchanging()
    nameless = [replace(run, facts={"world_size": "4"}) for run in on_host(runs)]
    for unclear in (runs, on_host(runs, "Made GPU"), nameless):
        (entry,) = bandwidths(unclear)
        assert entry.link_frac is None
        assert entry.link.reason


def test_collectives_without_sizes_have_no_bandwidth():
    assert bandwidths(exchanging(elements=-1)) == ()
