"""Fleet: the result of the analysis of a job, with the ranks that its report names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from gpulab.errors import RunError, TraceError
from gpulab.extras import require_extra
from gpulab.fleet.group_arrivals import GroupArrivals, group_arrivals
from gpulab.fleet.job_summary import JobSummary, UnreadFile
from gpulab.fleet.rank_files import RankFile
from gpulab.fleet.rank_summary import RankSummary
from gpulab.fleet.rank_task import FileReading, load_rank
from gpulab.run import Run
from gpulab.wording import number_ranges

if TYPE_CHECKING:
    import pandas as pd

_MAX_NUMBER_RANGES = 12


@dataclass(frozen=True, kw_only=True)
class Spread:
    """One value per rank, in ns: its quantiles, and the rank of the largest (None: unknown)."""

    least_ns: int
    lower_ns: int  # the quartiles
    median_ns: int
    upper_ns: int
    most_ns: int
    most_rank: int | None


@dataclass(frozen=True, kw_only=True)
class FindingCount:
    """The ranks on which a rule gives the first finding."""

    rule: str  # "" for ranks without a finding
    ranks: tuple[int, ...]  # with known numbers
    count: int
    claim: str  # on the lowest of these ranks
    worst_speedup: float | None  # the smallest over these ranks; None: nothing is predicted
    best_speedup: float | None  # the largest


@dataclass(frozen=True, kw_only=True)
class HostSummary:
    """The ranks of one host. A rank that the others wait for has little exposed communication, as it does not wait."""

    host: str
    ranks: tuple[int, ...]
    step_ns: int  # median over its ranks
    communication_ns: int  # exposed, per step: the least of its ranks
    clock_mhz: float | None
    last_steps: int  # steps in which one of its ranks arrives last, over all process groups


@dataclass(frozen=True, eq=False, repr=False)
class Fleet:
    """All ranks of a job: step times, ledger, stragglers, findings, and the files that could not be read.

    Show it in a notebook, or print it. `fleet.rank(17)` loads the run of a rank with all its events, and
    `fleet.ranks_frame` has one row per rank.
    """

    job: JobSummary
    files: Mapping[str, RankFile] = field(default_factory=dict)  # by path
    reading: FileReading = field(default_factory=FileReading)

    @cached_property
    def ranks(self) -> tuple[RankSummary, ...]:
        """One summary per rank, by rank: of several recordings of a rank, the first."""
        first: dict[object, RankSummary] = {}
        for summary in self.job.ranks:
            first.setdefault(summary.path if summary.rank is None else summary.rank, summary)
        return tuple(first.values())

    @property
    def unread(self) -> tuple[UnreadFile, ...]:
        """The files that could not be read, with reasons."""
        return self.job.unread

    @cached_property
    def world_size(self) -> int | None:
        """Number of ranks of the job, as most traces say; None if none does."""
        sizes = Counter(summary.world_size for summary in self.ranks if summary.world_size)
        return sizes.most_common(1)[0][0] if sizes else None

    @cached_property
    def missing_ranks(self) -> tuple[int, ...]:
        """The ranks of which there is no file; () if the number of ranks is unknown."""
        present = {summary.rank for summary in self.ranks} | {file.rank for file in self.unread}
        return tuple(rank for rank in range(self.world_size or 0) if rank not in present)

    @cached_property
    def measured(self) -> tuple[RankSummary, ...]:
        """The ranks that recorded steps with events."""
        return tuple(summary for summary in self.ranks if summary.step_ns is not None)

    @cached_property
    def step_times(self) -> Spread | None:
        """Typical step times of the ranks; None if no rank recorded steps."""
        return self._spread([summary.step_ns or 0 for summary in self.measured])

    @cached_property
    def ledger(self) -> dict[str, Spread]:
        """Each part of the typical step over the ranks, by key; parts that took no time on any rank are left out."""
        keys = {key: None for summary in self.measured for key in summary.part_ns}
        spreads = {key: self._spread([summary.part_ns.get(key, 0) for summary in self.measured]) for key in keys}
        return {key: spread for key, spread in spreads.items() if spread is not None and spread.most_ns}

    def _spread(self, values: Sequence[int]) -> Spread | None:
        if not values:
            return None
        quantiles = np.rint(np.quantile(values, (0, 0.25, 0.5, 0.75, 1))).astype(np.int64).tolist()
        rank = self.measured[int(np.argmax(values))].rank
        return Spread(
            least_ns=quantiles[0],
            lower_ns=quantiles[1],
            median_ns=quantiles[2],
            upper_ns=quantiles[3],
            most_ns=quantiles[4],
            most_rank=rank,
        )

    @cached_property
    def arrivals(self) -> tuple[GroupArrivals, ...]:
        """Arrivals at collectives by process group, longest waits first; () if no collectives could be matched."""
        return group_arrivals(self.ranks)

    @cached_property
    def straggler(self) -> GroupArrivals | None:
        """The process group whose straggler costs most; None if no rank is a persistent straggler."""
        return next((group for group in self.arrivals if group.is_persistent), None)

    @cached_property
    def findings(self) -> tuple[FindingCount, ...]:
        """The first findings, counted over ranks, most frequent first."""
        by_rule: dict[str, list[RankSummary]] = {}
        for summary in self.ranks:
            by_rule.setdefault(summary.finding.rule if summary.finding else "", []).append(summary)
        examples = {example.rule: example for example in self.job.findings}
        counts = [
            FindingCount(
                rule=rule,
                ranks=tuple(summary.rank for summary in summaries if summary.rank is not None),
                count=len(summaries),
                claim=examples[rule].claim if rule in examples else "no first finding",
                worst_speedup=examples[rule].worst_speedup if rule in examples else None,
                best_speedup=examples[rule].best_speedup if rule in examples else None,
            )
            for rule, summaries in by_rule.items()
        ]
        return tuple(sorted(counts, key=lambda item: (-item.count, item.rule)))

    @cached_property
    def hosts(self) -> tuple[HostSummary, ...]:
        """The hosts that the traces name, those whose ranks are last most often first."""
        by_host: dict[str, list[RankSummary]] = {}
        for summary in self.measured:
            if summary.host is not None:
                by_host.setdefault(summary.host, []).append(summary)
        last: Counter[int] = Counter()
        for group in self.arrivals:
            last.update(dict(group.late_ranks))
        return tuple(sorted((_host(name, of, last) for name, of in by_host.items()), key=_host_order))

    def rank(self, number: int) -> Run:
        """Load the run of one rank, with all its events. Raises RunError if there is no readable file of it."""
        summary = next((each for each in self.ranks if each.rank == number), None)
        if summary is None or summary.path not in self.files:
            unread = next((file.reason for file in self.unread if file.rank == number), None)
            raise RunError(
                f"There is no run of rank {number}.",
                why=unread or f"read were the ranks {rank_numbers(each.rank for each in self.ranks)}",
                fix="choose one of these ranks" if unread is None else "record this rank again",
            )
        try:
            return load_rank(self.files[summary.path], self.reading)
        except OSError as error:
            raise TraceError(
                f"The file of rank {number} can no longer be read.", why=str(error), fix="check that it still exists"
            ) from None

    @property
    def ranks_frame(self) -> pd.DataFrame:
        """One row per rank: host, GPU, step time and ledger parts in ns, wait in its largest group, first finding.

        Raises GpulabError if pandas is not installed.
        """
        require_extra("frames", "pandas", problem="The ranks cannot be shown as a DataFrame.")
        import pandas as pd

        waits = dict(zip(self.arrivals[0].ranks, self.arrivals[0].waits_ns, strict=True)) if self.arrivals else {}
        return pd.DataFrame([_frame_row(summary, waits) for summary in self.ranks])

    def report(self) -> Any:
        """Return the report, a view: show it, print it, or save it."""
        return import_module("gpulab.views.fleet.fleet_report").fleet_report(self)

    def __repr__(self) -> str:
        return repr(self.report())

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        bundle: dict[str, str] = self.report()._repr_mimebundle_()
        return bundle


def rank_numbers(ranks: Iterable[int | None]) -> str:
    """Return the numbers of ranks as ranges, and how many more there are if these are many: "0-7, 9"."""
    numbers = sorted({rank for rank in ranks if rank is not None and rank >= 0})
    text = number_ranges(numbers)
    if text.count(",") < _MAX_NUMBER_RANGES:
        return text
    return f"{', '.join(text.split(', ')[:_MAX_NUMBER_RANGES])} and others, {len(numbers):,} in all"


def _host(name: str, summaries: Sequence[RankSummary], last: Mapping[int, int]) -> HostSummary:
    ranks = tuple(summary.rank for summary in summaries if summary.rank is not None)
    clocks = [summary.clock_mhz for summary in summaries if summary.clock_mhz is not None]
    return HostSummary(
        host=name,
        ranks=ranks,
        step_ns=int(np.median([summary.step_ns or 0 for summary in summaries])),
        communication_ns=min(summary.part_ns.get("communication", 0) for summary in summaries),
        clock_mhz=float(np.median(clocks)) if clocks else None,
        last_steps=sum(last.get(rank, 0) for rank in ranks),
    )


def _host_order(host: HostSummary) -> tuple[int, int, str]:
    return -host.last_steps, host.communication_ns, host.host


def _frame_row(summary: RankSummary, waits: Mapping[int, int]) -> dict[str, Any]:
    return {
        "rank": summary.rank,
        "host": summary.host,
        "gpu": summary.gpu,
        "steps": summary.interior_steps,
        "step_ns": summary.step_ns,
        **{f"{key}_ns": value for key, value in summary.part_ns.items()},
        "wait_ns": waits.get(summary.rank) if summary.rank is not None else None,
        "clock_mhz": summary.clock_mhz,
        "finding": summary.finding.rule if summary.finding else "",
        "events": summary.events,
        "lost_events": summary.lost_events,
        "path": summary.path,
    }
