"""Who held memory when it ran out, as figures to reason with."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpulab.run import Run


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What one name held in one way."""

    who: str
    kind: str  # as in gpulab.tables.HOLDERS
    bytes: int
    tensors: int  # -1: not told
    largest: str | None


@dataclass(frozen=True, kw_only=True)
class Held:
    """All of it, largest first; `unused_bytes` PyTorch kept for later."""

    holdings: tuple[Holding, ...]
    unused_bytes: int | None

    def of(self, *kinds: str) -> tuple[Holding, ...]:
        """What was held in these ways."""
        return tuple(each for each in self.holdings if each.kind in kinds)

    def bytes_of(self, *kinds: str) -> int:
        """How much was held in these ways."""
        return sum(each.bytes for each in self.of(*kinds))

    @property
    def total_bytes(self) -> int:
        """All that was found held."""
        return sum(each.bytes for each in self.holdings)

    def but_for(self, who: str) -> Held:
        """What everybody else held."""
        return replace(self, holdings=tuple(each for each in self.holdings if each.who != who))


def held(run: Run) -> Held:
    """Who held memory at the end of a run that ran out of it."""
    rows = run.holder_rows
    who, kind, largest = (rows.words(name).to_list() for name in ("who", "kind", "largest"))
    columns = zip(who, kind, rows["bytes"].tolist(), rows["tensors"].tolist(), largest, strict=True)
    holdings = [
        Holding(who=name or "unnamed", kind=how or "other", bytes=size, tensors=count, largest=what)
        for name, how, size, count, what in columns
    ]
    failure, unused = run.failure, None
    if failure is not None and failure.reserved_bytes is not None and failure.allocated_bytes is not None:
        unused = max(0, failure.reserved_bytes - failure.allocated_bytes)
    return Held(holdings=tuple(sorted(holdings, key=lambda each: -each.bytes)), unused_bytes=unused)


@dataclass(frozen=True, kw_only=True)
class Growing:
    """A collection that grew by tensors with their graphs while a run went on."""

    name: str
    entries: int  # by so many
    bytes: int | None  # and so much is kept by these; None where it was not counted

    @property
    def each_bytes(self) -> float | None:
        """What one entry keeps."""
        return None if self.bytes is None else self.bytes / max(1, self.entries)


def growing(run: Run) -> tuple[Growing, ...]:
    """What grew in a run that went on; the holders of one that failed are another matter."""
    if run.failure is not None:
        return ()
    rows = run.holder_rows
    names = zip(rows.words("who").to_list(), rows["bytes"].tolist(), rows["tensors"].tolist(), strict=True)
    return tuple(
        Growing(name=name, entries=count, bytes=size if size >= 0 else None) for name, size, count in names if name
    )
