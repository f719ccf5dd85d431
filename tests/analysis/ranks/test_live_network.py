"""Two live ranks on gloo in two network namespaces, which stand for two machines, joined by a link that may be slow."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpulab
from gpulab.analysis.ranks.bandwidth import bandwidths

ROOT = Path(__file__).resolve().parents[3]
SPEED = 10e9 / 8  # that Linux states for a pair of virtual interfaces, in bytes per second
SLOW_BITS = "400mbit"
PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(6)])
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(24):
    model(torch.randn(16, 1024)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""

pytestmark = pytest.mark.full


def run(*command):
    subprocess.run(command, check=True, capture_output=True, timeout=30)


def hosts(number):
    """The names of two namespaces and of their interfaces, of this process only."""
    return [(f"gpulab{os.getpid()}{number}{side}", f"gl{number}{side}") for side in "ab"]


@pytest.fixture
def two_hosts(request):
    """Two namespaces joined by a pair of interfaces, limited to the rate of the parameter if it has one."""
    if os.name != "posix" or os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "unshare"))):
        pytest.skip("network namespaces need Linux, root, iproute2 and util-linux")
    rate = request.param
    ends = hosts(int(rate is not None))
    try:
        for namespace, _ in ends:
            run("ip", "netns", "add", namespace)
        run("ip", "link", "add", ends[0][1], "type", "veth", "peer", "name", ends[1][1])
    except subprocess.CalledProcessError as problem:
        pytest.skip(f"no network namespaces here: {problem.stderr.decode()[:200]}")
    for number, (namespace, interface) in enumerate(ends, 1):
        run("ip", "link", "set", interface, "netns", namespace)
        inside = ("ip", "-n", namespace)
        run(*inside, "addr", "add", f"10.77.0.{number}/24", "dev", interface)
        run(*inside, "link", "set", interface, "up")
        run(*inside, "link", "set", "lo", "up")
        if rate:
            limit = ("rate", rate, "burst", "64kb", "latency", "50ms")
            run("ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", interface, "root", "tbf", *limit)
    yield ends
    for namespace, _ in ends:
        run("ip", "netns", "del", namespace)


def recorded(ends, folder):
    """The runs of one rank on each of the hosts."""
    pytest.importorskip("torch")
    (folder / "train.py").write_text(PROGRAM)
    ranks = []
    for rank, (namespace, interface) in enumerate(ends):
        job = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29551"}
        environ = {**os.environ, **job, "GLOO_SOCKET_IFNAME": interface, "PYTHONPATH": str(ROOT)}
        program = [sys.executable, "-m", "gpulab", "run", "--out", "job", "train.py"]
        named = ["unshare", "--uts", "sh", "-c", f'hostname host{rank} && exec "$@"', "sh"]
        command = ["ip", "netns", "exec", namespace, *named, *program]
        ranks.append(subprocess.Popen(command, cwd=folder, env={**environ, "GPULAB_PROGRESS": "off"}))
    assert [rank.wait(timeout=240) for rank in ranks] == [0, 0]
    return gpulab.load(folder / "job")


@pytest.mark.night
@pytest.mark.parametrize("two_hosts", [SLOW_BITS], indirect=True)
def test_a_network_far_slower_than_its_ports_is_named_on_live_ranks(two_hosts, tmp_path):
    ranks = recorded(two_hosts, tmp_path)
    assert {rank.facts["host"] for rank in ranks} == {"host0", "host1"}
    largest = next(entry for entry in bandwidths(ranks) if entry.is_large)
    assert largest.link.bytes_per_s == SPEED
    first = gpulab.diagnose(ranks).first
    assert first.rule == "slow_link"
    assert first.numbers["bus_bytes_per_s"] < 60e6
    assert "GPU" not in first.claim


@pytest.mark.night
@pytest.mark.parametrize("two_hosts", [None], indirect=True)
def test_a_network_without_a_limit_is_not_called_slow(two_hosts, tmp_path):
    assert "slow_link" not in [finding.rule for finding in gpulab.diagnose(recorded(two_hosts, tmp_path)).findings]
