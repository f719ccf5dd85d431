"""The speed of a network port, from what Linux states in /sys and /proc."""

from __future__ import annotations

import pytest

from gpulab.sensors.network import network_bytes_per_s

ROUTES = "Iface\tDestination\tGateway\tFlags\neth0\t0000FEA9\t00000000\t0001\neth1\t00000000\t0100000A\t0003\n"


def machine(root, *, interfaces=(), ports=(), routes=ROUTES):
    """Write the files of a machine: interfaces by name and speed, InfiniBand ports by rate and state."""
    (root / "proc/net").mkdir(parents=True)
    (root / "proc/net/route").write_text(routes)
    for name, speed in interfaces:
        (root / "sys/class/net" / name).mkdir(parents=True)
        (root / "sys/class/net" / name / "speed").write_text(speed)
    for number, (rate, state) in enumerate(ports):
        port = root / f"sys/class/infiniband/mlx5_{number}/ports/1"
        port.mkdir(parents=True)
        (port / "rate").write_text(rate)
        (port / "state").write_text(state)
    return root


INTERFACES = (("eth0", "1000\n"), ("eth1", "25000\n"), ("ib0", "100000\n"))


def test_the_interface_of_the_default_route_counts(tmp_path):
    assert network_bytes_per_s(machine(tmp_path, interfaces=INTERFACES), {}) == 25e9 / 8


@pytest.mark.parametrize(
    ("variable", "value", "bits_per_s"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0", 1e9),
        ("NCCL_SOCKET_IFNAME", "=ib0", 100e9),
        ("NCCL_SOCKET_IFNAME", "ib", 100e9),
        ("NCCL_SOCKET_IFNAME", "eth0,eth1", 1e9),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", 25e9),
        ("NCCL_SOCKET_IFNAME", "wlan", 25e9),
    ],
)
def test_an_interface_named_in_the_environment_comes_first(tmp_path, variable, value, bits_per_s):
    root = machine(tmp_path, interfaces=INTERFACES)
    assert network_bytes_per_s(root, {variable: value}) == bits_per_s / 8


def test_the_fastest_active_infiniband_port_counts_if_rdma_can_be_used(tmp_path):
    ports = (
        ("100 Gb/sec (4X EDR)\n", "4: ACTIVE\n"),
        ("400 Gb/sec (4X NDR)\n", "1: DOWN\n"),
        ("2.5 Gb/sec", "4: ACTIVE"),
    )
    root = machine(tmp_path, interfaces=INTERFACES, ports=ports)
    assert network_bytes_per_s(root, {}) == 100e9 / 8
    assert network_bytes_per_s(root, {}, by_rdma=False) == 25e9 / 8


@pytest.mark.parametrize("speed", ["-1\n", "", "unknown\n", "0"])
def test_a_virtual_interface_has_no_speed(tmp_path, speed):
    assert network_bytes_per_s(machine(tmp_path, interfaces=(("eth1", speed),)), {}) is None


def test_without_any_file_the_speed_is_unknown(tmp_path):
    assert network_bytes_per_s(tmp_path, {}) is None
