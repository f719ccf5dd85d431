"""The link between the ranks of a job, as far as the recordings show it: NVLink, PCIe or a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpulab.analysis.steps.ledger import main_device
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.hardware.lookup import spec_of
from gpulab.run import Run
from gpulab.run_facts import NETWORK_SPEED, number_from_fact
from gpulab.tables import DEVICE_KINDS

NETWORK = "network"


@dataclass(frozen=True, kw_only=True)
class Link:
    """The link that is assumed, and why."""

    name: str  # "NVLink", "PCIe 4", "network" or "unknown"
    bytes_per_s: float | None  # of one GPU in one direction, as specified; None: unknown
    reason: str  # why it is assumed, or why it is unknown


def link_of(runs: Sequence[Run], ranks: int, *, network_bytes_per_s: float | None = None) -> Link:
    """Return the link between the GPUs of a process group: `runs` are those recorded of its `ranks`.

    Ranks on one host communicate by NVLink if the GPU has it, else by PCIe. Ranks on several hosts, or on hosts that
    the recordings do not name, communicate by a network with the speed that is passed, or else with that of their
    network ports, if the recordings contain it.
    """
    hosts = {run.facts.get("host") for run in runs}
    is_one_host = len(hosts) == 1 and None not in hosts and len(runs) == ranks
    if len(hosts) > 1 and None not in hosts:
        return _network(runs, len(hosts), network_bytes_per_s)
    if not any(run.machine.gpus for run in runs):
        on_gpu = any(bool(run.event_rows.is_kind(*DEVICE_KINDS).any()) for run in runs)
        return _unknown("the recordings do not name their GPUs" if on_gpu else "the ranks ran on CPUs")
    if not is_one_host and not _share_a_board(runs):
        if network_bytes_per_s is not None:
            return Link(name=NETWORK, bytes_per_s=network_bytes_per_s, reason="the speed was given")
        return _unknown("the recordings do not show whether all ranks ran on one host")
    specs = {_spec(run) for run in runs}
    if None in specs:
        return _unknown("gpulab does not list the speed of this GPU's links")
    return _slowest_inside([spec for spec in specs if spec is not None])


def _network(runs: Sequence[Run], hosts: int, given_bytes_per_s: float | None) -> Link:
    """Return the network between several hosts: as fast as the slowest port."""
    if given_bytes_per_s is not None:
        return Link(name=NETWORK, bytes_per_s=given_bytes_per_s, reason="the speed was given")
    speeds = [number_from_fact(run, NETWORK_SPEED) for run in runs]
    if None in speeds:
        return _unknown(f"the ranks ran on {hosts} hosts, and the recordings do not contain the speed of the network")
    return Link(
        name=NETWORK,
        bytes_per_s=min(speed for speed in speeds if speed is not None),
        reason=f"the ranks ran on {hosts} hosts, whose network ports state this speed",
    )


def _share_a_board(runs: Sequence[Run]) -> bool:
    """Whether each rank used another GPU of a machine with at least as many GPUs as the job has ranks."""
    if len({run.facts.get("host") for run in runs}) > 1:
        return False
    devices = {main_device(run) for run in runs}
    return len(devices) == len(runs) and all(0 < _world_size(run) <= len(run.machine.gpus) for run in runs)


def _slowest_inside(specs: Sequence[GpuSpec]) -> Link:
    """Return the link between GPUs of one host."""
    rates = [spec.nvlink_bytes_per_s for spec in specs]
    names = " and ".join(sorted(spec.name for spec in specs))
    if None not in rates:
        return Link(
            name="NVLink",
            bytes_per_s=min(rate for rate in rates if rate is not None),
            reason=f"the ranks ran on one host, and NVLink joins all {names} of a board",
        )
    slowest = min(specs, key=lambda spec: spec.link_bytes_per_s)
    return Link(
        name=f"PCIe {slowest.pcie_generation}",
        bytes_per_s=slowest.link_bytes_per_s,
        reason=f"the ranks ran on one host, and {names} has no NVLink between all GPUs (a bridge is not counted)",
    )


def _spec(run: Run) -> GpuSpec | None:
    device = main_device(run)
    return spec_of(next((gpu for gpu in run.machine.gpus if gpu.index == device), next(iter(run.machine.gpus), None)))


def _world_size(run: Run) -> int:
    text = run.facts.get("world_size", "")
    return int(text) if text.isdecimal() else -1


def _unknown(reason: str) -> Link:
    return Link(name="unknown", bytes_per_s=None, reason=reason)
