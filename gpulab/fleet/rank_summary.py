"""Summary of one rank: what the analysis of a job needs of its trace, in at most 50 kB.

Columns of collectives are int64 arrays, stored as differences and compressed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from gpulab.analysis.ranks.arrivals import RankArrivals
from gpulab.errors import StoreError
from gpulab.intervals import Ints

MAX_BYTES = 50_000
MAX_COLLECTIVES = 1_200  # in the samples of all process groups together
MAX_STEPS = 200  # steps whose times are listed
MAX_TEXT = 400  # characters of each text
_COLUMNS = ("key", "step", "start_ns", "dur_ns", "exposed_ns")


@dataclass(frozen=True, kw_only=True)
class GroupSummary:
    """The collectives of one process group on one rank, in interior steps, and a sample of them for other ranks.

    The sample consists of complete steps, chosen by a hash of their collectives, so that all ranks choose the same. If
    steps have too many collectives, it has the first ones of each step.
    """

    name: str  # "" if the trace does not name it
    size: int | None  # ranks in it
    collectives: int  # per typical step
    moved_bytes: int | None  # per typical step and rank; None if some sizes are unknown
    sampled: int
    columns: bytes = field(repr=False)  # the sampled RankArrivals without `row`

    def arrivals(self) -> RankArrivals:
        """Return the sampled arrivals, by key. Raises StoreError if the summary is damaged."""
        try:
            values = np.frombuffer(zlib.decompress(self.columns), "<i8").reshape(len(_COLUMNS), self.sampled)
        except (ValueError, zlib.error) as error:
            raise StoreError(
                "The summary of a rank is damaged.", why=str(error), fix="delete the folder given as cache="
            ) from None
        key, step, start_ns, dur_ns, exposed_ns = np.cumsum(values, axis=1)
        return RankArrivals(key, np.arange(self.sampled), step, start_ns, dur_ns, exposed_ns)


def pack_arrivals(arrivals: RankArrivals) -> bytes:
    """Return the columns of arrivals as compressed bytes."""
    columns = np.array([getattr(arrivals, name) for name in _COLUMNS], "<i8").reshape(len(_COLUMNS), len(arrivals))
    return zlib.compress(np.diff(columns, axis=1, prepend=0).astype("<i8").tobytes())


@dataclass(frozen=True, kw_only=True)
class FirstFinding:
    """The finding of a rank to act on first, and its predicted speed-up; None: nothing is predicted."""

    rule: str
    claim: str
    confidence: str
    worst_speedup: float | None
    best_speedup: float | None


@dataclass(frozen=True, kw_only=True)
class DeviceTime:
    """What the busiest GPU did from its first work to its last, in ns."""

    window_ns: int
    busy_ns: int
    kernels_ns: int
    communication_ns: int
    exposed_communication_ns: int  # not overlapped by a kernel


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Times of the interior steps, one entry per step, at most MAX_STEPS of them, in ns."""

    start_ns: tuple[int, ...] = ()  # from the start of the recording of this rank
    dur_ns: tuple[int, ...] = ()
    collective_ns: tuple[int, ...] = ()  # time in which a collective ran
    exposed_ns: tuple[int, ...] = ()  # the part of it that no kernel overlaps: transfer, and waiting for other ranks


@dataclass(frozen=True, kw_only=True)
class RankSummary:
    """One rank in at most 50 kB. With an `error`, the file could not be read, and the other fields are unset."""

    path: str
    error: str = ""
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    gpu: str | None = None  # name of the device
    host_gpus: int = 0  # number of GPUs that the host has; 0 if unknown
    began_ns: int | None = None  # UNIX time of its start, by the clock of its host
    events: int = 0
    lost_events: int = 0  # of a damaged trace
    device: str | None = None  # "gpu" or "cpu"; None if no step was recorded with events
    interior_steps: int = 0
    step_ns: int | None = None  # the typical step
    traced_ns: int | None = None  # median interior step, with the profiler
    part_ns: Mapping[str, int] = field(default_factory=dict)  # the typical step by ledger part, which sums to step_ns
    median_part_ns: Mapping[str, int] = field(default_factory=dict)  # medians of the recorded steps by ledger part
    steps: StepTimes = field(default_factory=StepTimes)
    device_time: DeviceTime | None = None
    finding: FirstFinding | None = None
    verdict: str = ""
    groups: tuple[GroupSummary, ...] = ()
    clock_mhz: float | None = None  # median of the busiest GPU while it worked; None: not recorded
    throttled_frac: float | None = None  # share of the time in which power or heat limited its clock, 0-1

    @property
    def sort_key(self) -> tuple[bool, int, int, str]:
        """Order of summaries: by rank, start and path; those without a rank at the end."""
        return self.rank is None, self.rank or 0, self.began_ns or 0, self.path


def encode(summary: RankSummary) -> bytes:
    """Return a summary as msgpack."""
    return msgspec.msgpack.encode(summary)


def decode(data: bytes) -> RankSummary:
    """Return the summary that `encode` wrote. Raises StoreError if it is damaged."""
    try:
        return msgspec.msgpack.decode(data, type=RankSummary)
    except msgspec.MsgspecError as error:
        raise StoreError(
            "The summary of a rank is damaged.", why=str(error), fix="delete the folder given as cache="
        ) from None


def sampled_arrivals(arrivals: RankArrivals, limit: int) -> RankArrivals:
    """Return at most `limit` arrivals: complete steps, or the first arrivals of a few steps if steps are larger.

    The hash of the first key of a step decides, so ranks that recorded the same steps choose the same ones.
    """
    if len(arrivals) <= limit:
        return arrivals
    steps, first, counts = np.unique(arrivals.step, return_index=True, return_counts=True)
    by_hash = np.argsort(_hashes(arrivals.key[first]), kind="stable")
    per_step = max(limit // _FEWEST_STEPS, 1)
    chosen = np.cumsum(np.minimum(counts[by_hash], per_step)) <= limit
    mask = np.isin(arrivals.step, steps[by_hash[chosen]])
    position = np.empty(len(arrivals), np.int64)
    order = np.argsort(arrivals.step, kind="stable")  # keys are sorted, and stay so within a step
    position[order] = np.arange(len(arrivals)) - np.repeat(np.cumsum(counts) - counts, counts)
    return arrivals.select(mask & (position < per_step))


_FEWEST_STEPS = 4  # a straggler needs three


def _hashes(keys: Ints) -> Ints:
    mixed = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (mixed >> np.uint64(1)).astype(np.int64)
