"""A rule about ranks on one machine that want more CPU cores than it has."""

from __future__ import annotations

from gpulab.analysis.ranks.shared_cores import SharedCores, shared_cores
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, Finding, Gain, known_numbers
from gpulab.wording import count, number, percent, percent_range

_MIN_RANKS = 2
_MIN_DELAYED_FRAC = 0.15  # of the loop; beside other programs, the ranks of a quiet machine waited up to 0.06


def ranks_share_cores(evidence: Evidence) -> Finding | None:
    """The ranks on this machine want more CPU cores than there are, and wait for each other's cores.

    Proof: the main threads of the ranks often wait for a core, and the cores that the ranks use and wait for add up to
    more than the machine has.

    Confused with: other programs on the same cores, without which the ranks would find a core; stragglers and unequal
    work, as the rank without a core is late; slow operators, which take as long on a free core.

    What to do: give each rank its own cores: fewer ranks per machine, fewer threads and workers, or more cores.
    """
    shared = shared_cores(evidence.run, evidence.steps, evidence.peers)
    if shared is None or shared.ranks < _MIN_RANKS or not shared.is_scarce or shared.delayed_frac < _MIN_DELAYED_FRAC:
        return None
    threads = _threads_with_own_cores(shared)
    return Finding(
        claim=f"{count(shared.ranks, 'rank')} share {count(shared.cores, 'CPU core')}: the main thread waits for one "
        f"during {percent(shared.delayed_frac)} of the loop.",
        evidence=(
            f"CPU cores, mean over the loop: all ranks together use {number(shared.used_cores, 2)} and wait for "
            f"{number(shared.wanted_cores - shared.used_cores, 2)} more.",
            f"Over the ranks, the share of this wait is "
            f"{percent_range(min(shared.delayed_fracs), max(shared.delayed_fracs))}.",
        ),
        numbers=known_numbers(
            delayed_frac=shared.delayed_frac,
            wanted_cores=shared.wanted_cores,
            cores=shared.cores,
        ),
        fix=f"torch.set_num_threads({threads})  # in each rank; or start them with OMP_NUM_THREADS={threads}"
        if threads is not None
        else "",
        advice="Give each rank its own cores: start fewer ranks on this machine, use fewer DataLoader workers per "
        "rank, or request more cores (Slurm: --cpus-per-task). Other findings may be due to this wait.",
        gain=_gain(evidence, shared),
        confidence=CERTAIN,
        from_steps=False,
        distorts_others=True,
        explains=("uneven_batches", "exposed_communication", "unexplained_idle"),
    )


def _threads_with_own_cores(shared: SharedCores) -> int | None:
    """Return how many threads each rank can have, if it has more now and each can have one."""
    most = int(shared.cores // shared.ranks)
    return most if most >= 1 and shared.threads is not None and shared.threads > most else None


def _gain(evidence: Evidence, shared: SharedCores) -> Gain:
    """Return the gain of own cores: the wait of the main thread goes away, and what it does may overlap less."""
    return evidence.gain_of_removing(
        round(shared.delayed_frac * evidence.step_ns),
        "removing 50 to 100 % of the wait for a core, if each rank has cores of its own",
        "ranks that never wait for a core",
        (0.5, 1.0),
    )
