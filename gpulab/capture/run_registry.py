"""The runs of this process, by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from gpulab.errors import RunError
from gpulab.run import Run
from gpulab.wording import did_you_mean


class Runs(Mapping[str, Run]):
    """Runs recorded or loaded in this process; `runs["before"]`, `runs.last`."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._ranks: dict[str, tuple[str, ...]] = {}  # names of the runs of ranks, by the run that started them

    def __getitem__(self, name: str) -> Run:
        try:
            return self._runs[name]
        except KeyError:
            if not isinstance(name, str):
                raise RunError(
                    f"There is no run {name!r}.",
                    why="runs are found by name, not by number",
                    fix='gpulab.runs["before"], or gpulab.runs.last for the latest one',
                ) from None
            raise RunError(
                f"There is no run named {name!r}.",
                why=f"recorded in this session: {', '.join(self._runs)}"
                if self._runs
                else "nothing has been recorded yet",
                fix=did_you_mean(name, self._runs)
                or f"put %%gpuprofile {_recordable(name)} at the top of the training cell and run it",
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self._runs

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._runs.values())) if self._runs else "no runs yet: put %%gpuprofile on a cell"

    @property
    def last(self) -> Run:
        """The latest run."""
        if not self._runs:
            raise RunError(
                "There is no run yet.",
                why="nothing has been recorded in this session",
                fix="put %%gpuprofile at the top of the training cell and run it, or load a file: gpulab.load(path)",
            )
        return next(reversed(self._runs.values()))

    def add(self, run: Run) -> None:
        """Add a run under its name, in place of an earlier run of that name."""
        self._runs.pop(run.name, None)
        self._ranks.pop(run.name, None)
        self._runs[run.name] = run

    def add_ranks(self, name: str, ranks: Sequence[Run]) -> None:
        """Add the runs of the ranks that a recorded run started, before that run: it stays the last one."""
        started_them = self._runs.pop(name, None)
        for rank in ranks:
            self.add(rank)
        if started_them is not None:
            self.add(started_them)
        self._ranks[name] = tuple(rank.name for rank in ranks)

    def with_ranks(self, name: str) -> tuple[Run, ...]:
        """The runs of the ranks that a run started; the run itself if it started none. Raises RunError."""
        ranks = tuple(self[rank] for rank in self._ranks.get(name, ()) if rank in self._runs)
        return ranks or (self[name],)

    def holds(self, run: Run) -> bool:
        """Whether this very run has its name here, so that a magic finds it by name."""
        return self._runs.get(run.name) is run

    def free_name(self) -> str:
        """The first of run1, run2, ... that is free."""
        number = 1
        while f"run{number}" in self._runs:
            number += 1
        return f"run{number}"


def _recordable(name: str) -> str:
    """Return the name with all characters replaced that the name of a recording cannot have."""
    return re.sub(r"[^\w.-]+", "_", name)


runs = Runs()
