"""Ranks on one machine that want more cores than it has; not with cores of their own, nor beside other programs."""

from dataclasses import replace

from gpulab.run import Machine
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, host_sample, run_of, stepped


def ranks_of(count, *, own=0.5, delayed=0.5, cores=2.0, threads="1", host=lambda rank: "node0", workers=0.0):
    """Ranks with ten steps of 100 ms on the CPU; `own`: the cores that each of them gets."""
    runs = []
    for rank in range(count):
        samples = [
            host_sample(
                at, process_cpu_s=at / 1e3 * own, main_delayed_s=at / 1e3 * delayed, worker_cpu_s=at / 1e3 * workers
            )
            for at in range(0, 1000, 50)
        ]
        facts = {"threads": threads, "host": host(rank), "world_size": str(count)}
        events = stepped(lambda at: [event(EventKind.OP, "aten::mm", at + 1, 90)], count=10)
        machine = Machine(cores=int(cores), cores_allowed=cores)
        runs.append(replace(run_of(events, samples=samples, machine=machine, facts=facts), rank=rank))
    return runs


def provoked_by_twice_as_many_ranks_as_cores():
    return ranks_of(4)


def provoked_by_ranks_on_two_threads_each():
    return ranks_of(2, own=1.0, delayed=0.3, threads="2")


def provoked_by_their_workers():
    return ranks_of(2, own=0.5, workers=0.5, delayed=0.3)


def spared_as_each_rank_has_a_core():
    return ranks_of(2, own=1.0, delayed=0.01)


def spared_as_they_wait_for_a_core_that_other_programs_use():
    return ranks_of(2, own=0.6, delayed=0.3)


def spared_as_each_rank_has_a_machine():
    return ranks_of(4, own=0.6, delayed=0.3, host=lambda rank: f"node{rank}")


def spared_as_waits_for_a_core_are_rare():
    return ranks_of(4, own=0.5, delayed=0.1)
