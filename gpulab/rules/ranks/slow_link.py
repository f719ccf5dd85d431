"""A rule about a link between ranks that is much slower than specified."""

from __future__ import annotations

from gpulab.analysis.ranks.bandwidth import Bandwidth, bandwidths_of
from gpulab.analysis.ranks.collectives import KINDS
from gpulab.analysis.ranks.links import NETWORK, Link
from gpulab.analysis.ranks.matching import MatchedCollectives
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, Gain, Unjudged, known_numbers
from gpulab.rules.engine.phrases import step_spends
from gpulab.wording import count, duration, metric, percent, sentence, size

_MIN_TRANSFER_FRAC = 0.05  # of a step, in exposed transfers
_MIN_COUNT = 3
# Of the specified speed. nccl-tests reaches 75 to 90 % by NVLink with large messages, and about half of that with 16
# MiB; several GPUs on one PCIe switch or host bridge share it, and cards without peer-to-peer copy through the host.
_SLOW_FRAC = {"NVLink": 0.2}
_SLOW_FRAC_OF_OTHERS = 0.1
_USUAL_FRACS = 0.4, 0.8  # what such a link reaches


def slow_link(evidence: Evidence) -> Finding | Unjudged | None:
    """The link between the ranks is far slower than specified: large collectives take long although nobody waits.

    Proof: the fastest of the large collectives (from 16 MiB) reaches less than a fifth of the speed of NVLink, or a
    tenth of that of PCIe or of the network. Its time is counted from the arrival of the last rank, without any wait.

    Confused with: a straggler, whose delay is not counted here; small collectives, which latency limits; kernels that
    slow down a collective at the same time, which do so to some but not to the fastest one; a network between hosts
    whose speed is unknown.

    What to do: check which transport NCCL uses, the topology, and the environment variables that disable a transport;
    between hosts, check which network interface is used.
    """
    matched = evidence.matched_collectives
    entries = () if matched is None else bandwidths_of(matched)
    large = [entry for entry in entries if entry.is_large and entry.count >= _MIN_COUNT]
    if matched is None or not large:
        return None  # latency or waiting explains the time of small collectives
    judged = [entry for entry in large if entry.link.bytes_per_s is not None]
    if not judged:
        return Unjudged(
            reason=f"the link between the ranks is unknown: {large[0].link.reason}",
            fix="compare the bus bandwidths of the report with those of nccl-tests on the same machines",
        )
    slow = [entry for entry in judged if _is_slow(entry)]
    exposed_ns = sum(_exposed_transfer_ns(evidence, matched, entry) for entry in slow)
    if not slow or evidence.step_share(exposed_ns) < _MIN_TRANSFER_FRAC:
        return None
    return _finding(evidence, max(slow, key=lambda entry: entry.total_ns), exposed_ns)


def _is_slow(entry: Bandwidth) -> bool:
    return entry.fastest_link_frac is not None and entry.fastest_link_frac < _SLOW_FRAC.get(
        entry.link.name, _SLOW_FRAC_OF_OTHERS
    )


def _exposed_transfer_ns(evidence: Evidence, matched: MatchedCollectives, entry: Bandwidth) -> int:
    """Return the exposed time of these collectives without waits, on the diagnosed rank, per step."""
    index = next((at for at, rank in enumerate(matched.ranks) if rank.run is evidence.run), None)
    if index is None:
        return 0
    chosen = (
        matched.complete
        & matched.member[:, index]
        & (matched.kind == KINDS.index(entry.kind))
        & (matched.group == matched.groups.index(entry.group))
        & (matched.bytes >= entry.min_bytes)
        & (matched.bytes <= entry.max_bytes)
    )
    exposed = (matched.exposed_ns - matched.exposed_wait_ns)[chosen, index].sum()
    return int(exposed) // max(1, len(evidence.ledger.step_ns))


def _finding(evidence: Evidence, slowest: Bandwidth, exposed_ns: int) -> Finding:
    link, frac = slowest.link, slowest.link_frac or 0.0
    sizes = size(slowest.min_bytes), size(slowest.max_bytes)
    return Finding(
        ledger_parts=("communication",),
        claim=f"The link between the {'GPUs' if evidence.on_gpu else 'ranks'} is slow: {slowest.kind} operations reach "
        f"{metric(slowest.bus_bytes_per_s, 'B/s')}, {percent(frac)} of the speed of {_link_name(link)}.",
        evidence=(
            f"{step_spends(evidence, evidence.unprofiled_ns(exposed_ns))} in exposed transfers of large collectives, "
            "waiting not counted.",
            f"Median bus bandwidth of {count(slowest.count, 'collective')} of "
            f"{sizes[0] if sizes[0] == sizes[1] else ' to '.join(sizes)}: "
            f"{metric(slowest.bus_bytes_per_s, 'B/s')}; the fastest reaches {percent(slowest.fastest_link_frac)} of "
            f"the link. A transfer takes {duration(slowest.transfer_ns)}.",
            f"{sentence(_link_name(link)).rstrip('.')} has {metric(link.bytes_per_s, 'B/s')} in one direction; it is "
            f"assumed because {link.reason}.",
        ),
        numbers=known_numbers(
            exposed_ns=exposed_ns,
            bus_bytes_per_s=slowest.bus_bytes_per_s,
            link_bytes_per_s=link.bytes_per_s,
        ),
        advice=_advice(evidence, link),
        gain=_gain(evidence, frac, exposed_ns),
        confidence=LIKELY,
        confidence_reason="which network port the ranks use is assumed, not recorded"
        if link.name == NETWORK
        else f"that the GPUs are joined by {link.name} is assumed, not recorded",
        spans=evidence.ledger.spans["communication"],
    )


def _link_name(link: Link) -> str:
    return "the network" if link.name == NETWORK else link.name


def _advice(evidence: Evidence, link: Link) -> str:
    if link.name != NETWORK:
        return (
            "Run with NCCL_DEBUG=INFO and read which transport NCCL chooses; compare with `nvidia-smi topo -m` and "
            "`nvidia-smi nvlink --status`. Remove NCCL_P2P_DISABLE and NCCL_SHM_DISABLE from the environment. In a "
            "container, check that all GPUs are visible and that /dev/shm is large. all_reduce_perf of nccl-tests "
            "measures the link without the program."
        )
    measured = "iperf3 measures the network without the program."
    if not evidence.on_gpu:
        return f"Check which interface gloo uses, and name the fast one in GLOO_SOCKET_IFNAME. {measured}"
    return (
        "Run with NCCL_DEBUG=INFO and read which transport NCCL chooses: NET/IB is InfiniBand or RoCE, NET/Socket is "
        "TCP, which is far slower. Name the fast interface in NCCL_SOCKET_IFNAME, and remove NCCL_IB_DISABLE from the "
        f"environment. {measured}"
    )


def _gain(evidence: Evidence, frac: float, exposed_ns: int) -> Gain:
    low, high = (max(0.0, 1 - frac / usual_frac) for usual_frac in _USUAL_FRACS)
    return evidence.gain_of_removing(
        evidence.unprofiled_ns(exposed_ns),
        f"transfers at {percent(_USUAL_FRACS[0])} to {percent(_USUAL_FRACS[1])} of the speed of the link",
        "transfers in no time",
        (low, high),
    )
