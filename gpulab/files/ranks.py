"""Several runs that were loaded together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from gpulab.errors import RunError
from gpulab.run import Gap, Run
from gpulab.wording import clean, count, number_ranges, plural

_MAX_LINES = 32


@dataclass(frozen=True, eq=False, repr=False)  # eq=False: comparing arrays does not give a single bool
class Ranks(Sequence[Run]):
    """The runs of a job, one or more per rank, ordered by rank; and the files that could not be read, with reasons.

    A sequence: `ranks[0]` is the first run, whatever its rank; `ranks.of_rank(3)` are the runs of rank 3.
    """

    runs: tuple[Run, ...]
    unread: tuple[Gap, ...] = ()

    @overload
    def __getitem__(self, at: int) -> Run: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Run, ...]: ...
    def __getitem__(self, at: int | slice) -> Run | tuple[Run, ...]:
        return self.runs[at]

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def of_rank(self, rank: int) -> tuple[Run, ...]:
        """The runs of one rank, by start. Raises RunError if there is none."""
        selected = tuple(run for run in self.runs if run.rank == rank)
        if not selected:
            raise RunError(
                f"There is no run of rank {rank}.",
                why=f"loaded are {self._summary()}",
                fix="choose one of these ranks, or load the file of that rank",
            )
        return selected

    def __getattr__(self, name: str) -> object:
        # A user who passes Ranks in place of a Run gets a hint; code that probes for special names does not.
        hint = "" if name.startswith("_") else "; this is a sequence of runs: choose one, such as ranks[0]"
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)

    def __repr__(self) -> str:
        lines = [self._summary()]
        lines += [f"  rank {'?' if run.rank is None else run.rank}: {run!r}" for run in self.runs[:_MAX_LINES]]
        if len(self) > _MAX_LINES:
            lines.append(f"  ... and {len(self) - _MAX_LINES:,} more")
        if self.unread:
            lines.append(f"not read: {len(self.unread)}")
            lines += [clean(f"  {gap.what} why: {gap.why}; fix: {gap.fix}") for gap in self.unread[:_MAX_LINES]]
        return "\n".join(lines)

    def _summary(self) -> str:
        """Number of runs, and their ranks."""
        ranks = sorted({run.rank for run in self.runs if run.rank is not None})
        sizes = {run.facts.get("world_size", "") for run in self.runs}
        of = clean(f" of {sizes.pop()}", 60) if len(sizes) == 1 and sizes != {""} else ""
        text = f"{plural(len(ranks), 'rank')} {number_ranges(ranks)}{of}" if ranks else "rank unknown"
        return f"{count(len(self), 'run')}, {text}"
