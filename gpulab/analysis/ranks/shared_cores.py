"""The CPU cores that the ranks of one machine share: how many they want together, and how long they wait for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpulab.analysis.host.cpu_contention import counter_rate, host_samples_in_loop
from gpulab.analysis.steps.detection import Steps, find_steps
from gpulab.run import Run
from gpulab.run_facts import count_from_fact


@dataclass(frozen=True, kw_only=True)
class SharedCores:
    """The ranks on the machine of a rank, and what they need of its cores."""

    ranks: int
    cores: float  # that they may use
    used_cores: float  # by all of them, with their DataLoader workers: mean over the loop
    wanted_cores: float  # used, and waited for by a main thread
    delayed_frac: float  # share of the loop in which the main thread of this rank waits for a core
    delayed_fracs: tuple[float, ...]  # the same for each rank
    threads: int | None  # of PyTorch in this rank

    @property
    def is_scarce(self) -> bool:
        """Whether the ranks want more cores than there are."""
        return self.wanted_cores > self.cores


def shared_cores(run: Run, steps: Steps, peers: Sequence[Run]) -> SharedCores | None:
    """Return what the ranks on the machine of this run need of its cores; None if it was not recorded for all."""
    host, cores = run.facts.get("host"), run.machine.cores_allowed
    if host is None or not cores:
        return None
    neighbours = [peer for peer in peers if peer.facts.get("host") == host]
    used, delays = [], []
    for peer in neighbours:
        samples = host_samples_in_loop(peer, steps if peer is run else find_steps(peer))
        busy, delayed = counter_rate(samples, "process_cpu_s"), counter_rate(samples, "main_delayed_s")
        if busy is None or delayed is None:
            return None
        used.append(busy + max(0.0, counter_rate(samples, "worker_cpu_s") or 0.0))
        delays.append(min(1.0, delayed))
    if run not in neighbours:
        return None
    return SharedCores(
        ranks=len(neighbours),
        cores=cores,
        used_cores=sum(used),
        wanted_cores=sum(used) + sum(delays),
        delayed_frac=delays[neighbours.index(run)],
        delayed_fracs=tuple(delays),
        threads=count_from_fact(run, "threads"),
    )
