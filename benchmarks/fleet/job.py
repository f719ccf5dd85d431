"""Write the traces of a job of many ranks: one real trace, replicated with delays that a straggler would cause.

    python -m benchmarks.fleet.job TRACE FOLDER --ranks 512 --straggler 37 --delay-ms 12

In each step, each rank waits a random time (at most 1 ms) longer for its DataLoader, and the straggler `--delay-ms`
longer. The first exposed collective of the step then ends on all ranks when the last one has arrived: it lasts longer
on the others, by as much as they wait. Later events of the step move on with it. Each rank has its number, its host
(eight ranks each) and the clock of its host, which is off by up to 40 ms. `--corrupt 3` makes the files of the last
three ranks unreadable.
"""

from __future__ import annotations

import argparse
import gzip
import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

JITTER_US = 1_000
RANKS_PER_HOST = 8
CLOCK_OFF_US = 40_000
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_LOADER = re.compile(r"enumerate\(DataLoader\)")
UNREADABLE = (b"", b"<html>502 Bad Gateway</html>", bytes(range(256)) * 64)  # content of corrupt files, in turn
Times = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Job:
    """The job to write: number of ranks, and the rank that is late by so much."""

    ranks: int
    straggler: int
    delay_us: int

    @property
    def delays_us(self) -> Times:
        """The delay of each rank in each of (at most) 64 steps."""
        delays = np.random.default_rng(3).integers(0, JITTER_US, (self.ranks, 64))
        delays[self.straggler] += self.delay_us
        return delays


@dataclass(frozen=True)
class Template:
    """A parsed trace, and where its steps can be delayed."""

    document: dict[str, Any]
    start_us: Times
    end_us: Times
    waits_from_us: Times  # per step: a moment within the wait for the DataLoader
    waits_until_us: Times  # per step: the end of the first exposed collective


def read_template(path: Path) -> Template:
    """Parse a trace and find where its steps can be delayed. Raises ValueError if it has no such steps."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        document = msgspec.json.decode(file.read())
    events = document["traceEvents"]
    start = np.array([event.get("ts", 0) for event in events], np.int64)
    end = start + np.array([event.get("dur", 0) for event in events], np.int64)
    on_device = np.array([str(event.get("cat", "")).lower() in DEVICE_CATEGORIES for event in events])
    is_collective = np.array(["nccl" in event["name"].lower() for event in events]) & on_device
    waits = np.sort(
        [(start[n] + end[n]) // 2 for n, event in enumerate(events) if "dur" in event and _LOADER.search(event["name"])]
    )
    froms, untils = [], []
    for at, limit in zip(waits, [*waits[1:], end.max()], strict=True):
        for index in np.flatnonzero(is_collective & (start > at) & (end < limit) & (end - start > 1000)):
            if not (on_device & (start < end[index]) & (end > end[index])).any():
                froms.append(at)
                untils.append(end[index])
                break
    if not froms:
        raise ValueError(f"{path} has no step with a wait for the DataLoader and an exposed collective")
    return Template(document, start, end, np.array(froms), np.array(untils))


def rank_trace(template: Template, job: Job, rank: int) -> bytes:
    """Return the trace of one rank as JSON."""
    delays = job.delays_us[:, : len(template.waits_from_us)]
    delay, longest = delays[rank], delays.max(axis=0)
    at = np.ravel(np.column_stack([template.waits_from_us, template.waits_until_us]))
    shift = np.append(0, np.cumsum(np.ravel(np.column_stack([delay, longest - delay]))))
    clock_us = int(np.random.default_rng(rank // RANKS_PER_HOST).integers(-CLOCK_OFF_US, CLOCK_OFF_US))
    start = template.start_us + shift[np.searchsorted(at, template.start_us, side="right")]
    end = template.end_us + shift[np.searchsorted(at, template.end_us, side="right")]
    events = []
    for event, start_us, dur_us in zip(
        template.document["traceEvents"], (start + clock_us).tolist(), (end - start).tolist(), strict=True
    ):
        moved = dict(event)
        if "ts" in moved:
            moved["ts"] = start_us
        if "dur" in moved:
            moved["dur"] = dur_us
        events.append(moved)
    header = {
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": job.ranks},
        "host_name": f"node{rank // RANKS_PER_HOST:04d}",
    }
    return msgspec.json.encode({**template.document, **header, "traceEvents": events})


def write_rank(template: Template, job: Job, folder: Path, rank: int) -> Path:
    """Write the trace of one rank to `folder` and return its path."""
    path = folder / f"rank_{rank:05d}.json.gz"
    path.write_bytes(gzip.compress(rank_trace(template, job, rank), 1))
    return path


def write_job(source: Path, folder: Path, job: Job, corrupt: int = 0, processes: int = 2) -> None:
    """Write the traces of all ranks to `folder`; the last `corrupt` ones are unreadable."""
    folder.mkdir(parents=True, exist_ok=True)
    template = read_template(source)
    with ProcessPoolExecutor(processes) as pool:
        list(pool.map(partial(write_rank, template, job, folder), range(job.ranks), chunksize=16))
    corrupt_last(folder, job, corrupt)


def corrupt_last(folder: Path, job: Job, count: int) -> None:
    """Make the files of the last `count` ranks unreadable, each in another way."""
    for index, rank in enumerate(range(job.ranks - count, job.ranks)):
        (folder / f"rank_{rank:05d}.json.gz").write_bytes(UNREADABLE[index % len(UNREADABLE)])


def main() -> None:
    """Write a job."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--straggler", type=int, default=37)
    parser.add_argument("--delay-ms", type=float, default=12.0)
    parser.add_argument("--corrupt", type=int, default=0)
    given = parser.parse_args()
    job = Job(ranks=given.ranks, straggler=given.straggler, delay_us=round(1000 * given.delay_ms))
    write_job(given.trace, given.folder, job, given.corrupt)


if __name__ == "__main__":
    main()
