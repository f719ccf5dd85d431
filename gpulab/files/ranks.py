"""Many runs that were loaded together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from gpulab.errors import RunError
from gpulab.run import Gap, Run
from gpulab.wording import count, number_ranges, plural

_SHOWN = 32


@dataclass(frozen=True, eq=False, repr=False)  # eq=False: comparing arrays has no yes/no answer
class Ranks(Sequence[Run]):
    """The runs of a job, one or more a rank, ordered by rank; and what of it could not be read, and why.

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
        """The runs of one rank, by start. Raises RunError where there is none."""
        found = tuple(run for run in self.runs if run.rank == rank)
        if not found:
            raise RunError(
                f"There is no run of rank {rank}.",
                why=f"these are {self._told()}",
                fix="take one of these ranks, or load the file of that one",
            )
        return found

    def __getattr__(self, name: str) -> object:
        # Who passes all of them where one run belongs reads what to do; what probes for special names does not.
        hint = "" if name.startswith("_") else "; they are several runs: take one of them, such as ranks[0]"
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name, obj=self)

    def __repr__(self) -> str:
        lines = [self._told()]
        lines += [f"  rank {'?' if run.rank is None else run.rank}: {run!r}" for run in self.runs[:_SHOWN]]
        if len(self) > _SHOWN:
            lines.append(f"  ... and {len(self) - _SHOWN:,} more")
        if self.unread:
            lines.append(f"not read: {len(self.unread)}")
            lines += [f"  {gap.what} why: {gap.why}; fix: {gap.fix}" for gap in self.unread[:_SHOWN]]
        return "\n".join(lines)

    def _told(self) -> str:
        """How many runs, and of which ranks."""
        known = sorted({run.rank for run in self.runs if run.rank is not None})
        sizes = {run.facts.get("world_size", "") for run in self.runs}
        of = f" of {sizes.pop()}" if len(sizes) == 1 and sizes != {""} else ""
        ranks = f"{plural(len(known), 'rank')} {number_ranges(known)}{of}" if known else "rank unknown"
        return f"{count(len(self), 'run')}, {ranks}"
