"""A probe's program, the log it writes, and the observation of one run of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

Undo = Callable[[], None]


class Log:
    """What the program's own code notes while it runs; compared between the two runs."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.calls: Counter[str] = Counter()
        self.recorded: list[str] = []  # what the recorder says of its recording; not compared

    def note(self, text: str) -> None:
        """Add a line."""
        self.notes.append(text)

    def call(self, name: str) -> None:
        """Count a call of the user's code."""
        self.calls[name] += 1


@dataclass(frozen=True, kw_only=True)
class Program:
    """A small program and the way it is recorded."""

    name: str
    recorder: str
    run: Callable[[Log], Any]
    # Called in the child before the program starts; the result undoes it before the state is compared.
    prepare: Callable[[], Undo] | None = None
    # Replaces the comparison of values where the two runs cannot be equal, e.g. because a signal comes at any instant.
    verdict: Callable[[Log, Outcome], str] | None = None
    around: Callable[[Log, Callable[[], Any]], Any] | None = None  # called outside the recorder
    size: int = 1  # odd parts in it: the smallest program of a kind of defect is printed


@dataclass(frozen=True)
class Outcome:
    """How a program ended: its value, or the chain of exceptions as (relation, type, arguments)."""

    value: str | None = None
    chain: tuple[tuple[str, str, str], ...] = ()
    origin: str = ""  # innermost frame of gpulab in the traceback: to group defects, not compared


@dataclass
class Observation:
    """One run of a program, seen from outside."""

    outcome: Outcome
    verdict: str | None = None
    notes: list[str] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    stdout: str = ""
    stderr: str = ""
    changes: dict[str, tuple[str, str]] = field(default_factory=dict)  # of the process's state
    rss_growth_bytes: int = 0
    peak_growth_bytes: int = 0
    recorded: list[str] = field(default_factory=list)
    trouble: str = ""  # the run did not end by itself

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Observation:
        """Read what `to_json` returned."""
        outcome = data.pop("outcome")
        chain = tuple(tuple(link) for link in outcome["chain"])
        changes = {key: tuple(value) for key, value in data.pop("changes").items()}
        return cls(outcome=Outcome(outcome["value"], chain, outcome["origin"]), changes=changes, **data)
