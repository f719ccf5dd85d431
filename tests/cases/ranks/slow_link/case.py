"""Four ranks on one host that all-reduce 400 MB in each step, over a link that may be slow."""

from dataclasses import replace

from gpulab.run import Gpu, Machine
from tests.support.runs.mesh_jobs import Exchange, mesh_job

RANKS = 4
SXM, PCIE = "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"  # 300 GB/s by NVLink, 31.5 GB/s by PCIe, in one direction
ELEMENTS = 100_000_000  # of a ring of four ranks, each sends 600 MB


def job(
    transfer_ms,
    *,
    name=SXM,
    elements=ELEMENTS,
    compute_ms=lambda rank, step: 60.0,
    exchanges=1,
    hosts=("a",),
    network="",
):
    """`transfer_ms(step)`: 600 MB in 40 ms are 15 GB/s."""

    def program(step):
        each = Exchange("0", tuple(range(RANKS)), transfer_ms(step), elements)
        return [(lambda rank: compute_ms(rank, step), [each] * exchanges)]

    gpus = tuple(Gpu(index=index, name=name, multiprocessors=108) for index in range(RANKS))
    runs = mesh_job(program, ranks=RANKS, machine=lambda rank: Machine(gpus=gpus)).runs
    names = [hosts[rank * len(hosts) // RANKS] for rank in range(RANKS)]
    facts = {"network_bytes_per_s": network} if network else {}
    return [replace(run, facts={**run.facts, **facts, "host": host}) for run, host in zip(runs, names, strict=True)]


def provoked_by_transfers_at_a_twentieth_of_nvlink():
    return job(lambda step: 40.0)


def provoked_by_pcie_at_a_thirtieth_of_its_speed():
    return job(lambda step: 600.0, name=PCIE)


def provoked_by_a_slow_link_although_one_rank_is_late_too():
    return job(lambda step: 40.0, compute_ms=lambda rank, step: 60.0 + 20 * (rank == 1))


def provoked_by_tcp_instead_of_infiniband():
    return job(lambda step: 240.0, hosts=("a", "b"), network="50000000000")


def spared_as_the_network_is_used_well():
    return job(lambda step: 40.0, hosts=("a", "b"), network="25000000000")


def spared_as_the_link_is_as_fast_as_usual():
    return job(lambda step: 2.6)


def spared_as_the_ranks_wait_for_one_of_them():
    return job(lambda step: 2.6, compute_ms=lambda rank, step: 60.0 + 60 * (rank == 1))


def spared_as_small_collectives_are_limited_by_latency():
    return job(lambda step: 0.5, elements=100_000, exchanges=40)


def spared_as_some_transfers_are_fast():
    return job(lambda step: 40.0 if step % 3 else 2.6)


def spared_as_cards_share_a_pcie_switch():
    return job(lambda step: 120.0, name=PCIE)


def spared_as_the_speed_of_a_network_is_unknown():
    return job(lambda step: 40.0, hosts=("a", "b"))


def spared_as_the_transfers_are_a_small_part_of_the_step():
    return job(lambda step: 40.0, compute_ms=lambda rank, step: 2_000.0)
