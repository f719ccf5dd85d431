"""Holders of memory after an out-of-memory error: variables, gradients, optimizer state and others."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpulab.run import Run


@dataclass(frozen=True, kw_only=True)
class MemoryHolder:
    """Memory that one holder references as one kind."""

    name: str
    kind: str  # as in gpulab.tables.HOLDERS
    bytes: int
    tensors: int  # -1: unknown
    largest: str | None


@dataclass(frozen=True, kw_only=True)
class MemoryHolders:
    """All holders, largest first. `unused_bytes`: cached by PyTorch, not allocated."""

    holders: tuple[MemoryHolder, ...]
    unused_bytes: int | None

    def of_kinds(self, *kinds: str) -> tuple[MemoryHolder, ...]:
        """Return the holders of these kinds."""
        return tuple(each for each in self.holders if each.kind in kinds)

    def bytes_of(self, *kinds: str) -> int:
        """Return the memory of the holders of these kinds."""
        return sum(each.bytes for each in self.of_kinds(*kinds))

    @property
    def total_bytes(self) -> int:
        """Memory of all holders."""
        return sum(each.bytes for each in self.holders)

    def without(self, name: str) -> MemoryHolders:
        """Return the holders without this one."""
        return replace(self, holders=tuple(each for each in self.holders if each.name != name))


def memory_holders(run: Run) -> MemoryHolders:
    """Return the holders of memory at the end of a run with an out-of-memory error."""
    rows = run.holder_rows
    names, kinds, largest_tensors = (rows.text(name).to_list() for name in ("who", "kind", "largest"))
    columns = zip(names, kinds, rows["bytes"].tolist(), rows["tensors"].tolist(), largest_tensors, strict=True)
    holdings = [
        MemoryHolder(name=name or "unnamed", kind=kind or "other", bytes=size, tensors=count, largest=tensor)
        for name, kind, size, count, tensor in columns
    ]
    failure, unused = run.failure, None
    if failure is not None and failure.reserved_bytes is not None and failure.allocated_bytes is not None:
        unused = max(0, failure.reserved_bytes - failure.allocated_bytes)
    return MemoryHolders(holders=tuple(sorted(holdings, key=lambda each: -each.bytes)), unused_bytes=unused)


@dataclass(frozen=True, kw_only=True)
class GrowingList:
    """A list that collected tensors during a run, with their autograd graphs or in large buffers."""

    name: str
    kind: str  # what the entries keep: "graph" or "buffer"
    entries: int  # number of entries added
    bytes: int | None  # memory that they keep; None if not counted

    @property
    def bytes_per_entry(self) -> float | None:
        """Memory per entry."""
        return None if self.bytes is None else self.bytes / max(1, self.entries)


def growing_lists(run: Run) -> tuple[GrowingList, ...]:
    """Return the lists that grew in a run without an out-of-memory error; empty for a failed run."""
    if run.failure is not None:
        return ()
    rows = run.holder_rows
    names, kinds = rows.text("who").to_list(), rows.text("kind").to_list()
    columns = zip(names, kinds, rows["bytes"].tolist(), rows["tensors"].tolist(), strict=True)
    return tuple(
        GrowingList(name=name, kind=kind or "graph", entries=count, bytes=size if size >= 0 else None)
        for name, kind, size, count in columns
        if name and kind in (None, "", "graph", "buffer")  # others are holders of memory after an error
    )
