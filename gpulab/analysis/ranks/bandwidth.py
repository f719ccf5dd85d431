"""Bandwidth of collectives: how much data they move per second, and how much of the link between the GPUs that uses.

Both bandwidths are defined as in the documentation of nccl-tests. Algorithm bandwidth is the size over the time. Bus
bandwidth is that times a factor for the kind of collective and the number of ranks, so that it can be compared with the
speed of a link. The time is that of the rank that arrives last: there, a collective consists of the transfer alone.
If only some ranks of a group were recorded, the shortest duration that they recorded still holds a wait of unknown
length: the bandwidth is then at least the one given.

Source of the factors: github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.ranks.collectives import KINDS, SYNCHRONISING_KINDS, Collectives
from gpulab.analysis.ranks.links import Link, link_of
from gpulab.analysis.ranks.matching import MatchedCollectives, match_collectives
from gpulab.analysis.ranks.stragglers import ranks_with_collectives
from gpulab.analysis.steps.detection import Mask
from gpulab.intervals import Ints
from gpulab.run import Run

_TWICE_THE_REST, _THE_REST = ("all-reduce",), ("all-gather", "reduce-scatter", "all-to-all", "gather", "scatter")
_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
# Latency dominates the small ones, the link the large ones.
SIZE_CLASSES = (0, 64 * _KIB, _MIB, 16 * _MIB, 256 * _MIB)  # lower limits
LARGE_BYTES = 16 * _MIB  # from this size on, nccl-tests reaches most of its highest bus bandwidth inside a machine


def bus_factor(kind: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth for a kind of collective: 2 (n - 1) / n for an all-reduce."""
    if kind in _TWICE_THE_REST:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if kind in _THE_REST else 1.0


@dataclass(frozen=True, kw_only=True)
class Bandwidth:
    """The collectives of one kind, process group and size class."""

    kind: str
    group: str
    ranks: int  # of the group
    min_bytes: int  # smallest and largest of these collectives
    max_bytes: int
    count: int  # in the steps compared, once for all ranks
    transfer_ns: int  # median
    total_ns: int  # transfers together
    algorithm_bytes_per_s: float  # median over the collectives
    fastest_bytes_per_s: float  # algorithm bandwidth of the fastest
    is_lower_limit: bool  # some ranks were not recorded, so the time may contain a wait
    link: Link

    @property
    def bus_bytes_per_s(self) -> float:
        """Bus bandwidth: comparable with the speed of a link."""
        return self.algorithm_bytes_per_s * bus_factor(self.kind, self.ranks)

    @property
    def link_frac(self) -> float | None:
        """Share of the link's speed; None if the link is unknown."""
        speed = self.link.bytes_per_s
        return None if speed is None else self.bus_bytes_per_s / speed

    @property
    def fastest_link_frac(self) -> float | None:
        """Share of the link's speed that the fastest of them reaches; None if the link is unknown."""
        frac = self.link_frac
        return None if frac is None else frac * self.fastest_bytes_per_s / self.algorithm_bytes_per_s

    @property
    def is_large(self) -> bool:
        """Whether the link, and not latency, limits such a collective."""
        return self.min_bytes >= LARGE_BYTES


@dataclass(frozen=True, kw_only=True, eq=False)
class _Timed:
    """Collectives with the shortest time that a rank recorded for each."""

    kind: Ints
    bytes: Ints
    ranks: Ints  # of the group
    group: Ints
    groups: tuple[str, ...]
    dur_ns: Ints
    member: Mask  # collectives x runs: this run is of a rank of the group
    is_lower_limit: bool

    def select(self, mask: Mask) -> _Timed:
        columns = {name: getattr(self, name)[mask] for name in ("kind", "bytes", "ranks", "group", "dur_ns", "member")}
        return _Timed(**columns, groups=self.groups, is_lower_limit=self.is_lower_limit)


def bandwidths(runs: Sequence[Run], *, network_bytes_per_s: float | None = None) -> tuple[Bandwidth, ...]:
    """Return the bandwidth of each kind, group and size class of collectives, those with most transfer time first.

    `network_bytes_per_s`: the speed of the network of one GPU in one direction, which no recording contains. Empty if
    the sizes of the collectives were not recorded.
    """
    matched = match_collectives(runs)
    timed = _of_matched(matched) if matched is not None else None
    if timed is None or not len(timed.kind):
        timed = _of_one_rank(runs)
    return () if timed is None else _entries(timed, runs, network_bytes_per_s)


def bandwidths_of(matched: MatchedCollectives) -> tuple[Bandwidth, ...]:
    """Return the same of matched collectives; empty if no group's collectives with sizes were recorded completely."""
    return _entries(_of_matched(matched), [rank.run for rank in matched.ranks], None)


def _entries(timed: _Timed, runs: Sequence[Run], network_bytes_per_s: float | None) -> tuple[Bandwidth, ...]:
    if not len(timed.kind):
        return ()
    size_class = np.searchsorted(SIZE_CLASSES, timed.bytes, side="right")
    table = np.stack([timed.kind, timed.group, timed.ranks, size_class], axis=1)
    distinct, of_row = np.unique(table, axis=0, return_inverse=True)
    entries = []
    for index in range(len(distinct)):
        chosen = timed.select(of_row.reshape(-1) == index)
        of_group = [run for run, is_member in zip(runs, chosen.member[0], strict=True) if is_member]
        link = link_of(of_group, int(chosen.ranks[0]), network_bytes_per_s=network_bytes_per_s)
        entries.append(_bandwidth(chosen, link))
    return tuple(sorted(entries, key=lambda entry: -entry.total_ns))


def _of_matched(all_matched: MatchedCollectives) -> _Timed:
    """Return collectives that all ranks of their group recorded, with the time of the rank that arrives last."""
    matched = all_matched.select(all_matched.complete & (all_matched.bytes > 0))
    transfer = matched.transfer_ns
    matched, transfer = matched.select(transfer > 0), transfer[transfer > 0]
    return _Timed(
        kind=matched.kind,
        bytes=matched.bytes,
        ranks=matched.member.sum(axis=1),
        group=matched.group,
        groups=matched.groups,
        dur_ns=transfer,
        member=matched.member,
        is_lower_limit=False,
    )


def _of_one_rank(runs: Sequence[Run]) -> _Timed | None:
    """Return the collectives of the first rank that has sizes, with its own durations; None if none has."""
    for rank in ranks_with_collectives(runs):
        side: Collectives = rank.collectives
        mask = side.kind_mask(*SYNCHRONISING_KINDS) & (side.bytes > 0) & (side.group_size > 1) & (side.dur_ns > 0)
        mask &= side.interior
        if mask.any():
            return _Timed(
                kind=side.kind[mask],
                bytes=side.bytes[mask],
                ranks=side.group_size[mask],
                group=np.asarray(side.group[mask], np.int64),
                groups=(*side.groups, ""),
                dur_ns=side.dur_ns[mask],
                member=np.ones((int(mask.sum()), len(runs)), bool),
                is_lower_limit=True,
            )
    return None


def _bandwidth(timed: _Timed, link: Link) -> Bandwidth:
    rates = timed.bytes / timed.dur_ns * 1e9
    # Waits only lengthen a collective: without the other ranks, the fastest one is closest to the transfer.
    rate = float(rates.max()) if timed.is_lower_limit else float(np.median(rates))
    return Bandwidth(
        kind=KINDS[int(timed.kind[0])],
        group=timed.groups[int(timed.group[0])],
        ranks=int(timed.ranks[0]),
        min_bytes=int(timed.bytes.min()),
        max_bytes=int(timed.bytes.max()),
        count=len(timed.kind),
        transfer_ns=int(np.median(timed.dur_ns)),
        total_ns=int(timed.dur_ns.sum()),
        algorithm_bytes_per_s=rate,
        fastest_bytes_per_s=float(rates.max()),
        is_lower_limit=timed.is_lower_limit,
        link=link,
    )
