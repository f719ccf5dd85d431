"""What held memory when it ran out, as a table, largest first, and the rest of the device's memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpulab.analysis.memory.holders import MemoryHolder, MemoryHolders, memory_holders
from gpulab.run import Failure, Run
from gpulab.views.sheet.sheet import Block, Line, Row, Section, TableBlock
from gpulab.wording import count, percent, size

MAX_ROWS = 12
MIN_ROW_FRAC = 0.0005  # smaller rows would read "<0.1 %"; they are summed into one
KIND_LABELS = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer": "optimizer state",
    "variable": "variable",
    "output": "value of an earlier cell",
    "traceback": "error of an earlier cell",
    "graph": "saved for backward()",
    "other": "",
}


def memory_section(run: Run) -> Section | None:
    """Return the table for a run that ended in an out-of-memory error; None for any other run."""
    failure = run.failure
    if failure is None:
        return None
    memory_held = memory_holders(run)
    total_bytes = _total_bytes(failure, memory_held)
    largest = [each for each in memory_held.holders[:MAX_ROWS] if each.bytes >= MIN_ROW_FRAC * total_bytes]
    rest = memory_held.holders[len(largest) :]
    rows = [
        *(_row(each, total_bytes) for each in largest),
        *_rest(rest, total_bytes),
        *_outside_tensors(failure, total_bytes),
    ]
    if not rows:
        return None
    header = ("held by", "as", "largest tensor", "size", "share")
    blocks: list[Block] = [TableBlock(header=header, rows=tuple(rows), text_columns=3, caption=_caption(failure))]
    if failure.device is None:
        blocks.append(Line("Of the host memory, only the part held by PyTorch tensors is visible here.", soft=True))
    return Section("What holds the memory", tuple(blocks))


def _caption(failure: Failure) -> str:
    memory = "host memory" if failure.device is None else f"the memory of GPU {failure.device}"
    details = [size(failure.capacity_bytes)] if failure.capacity_bytes is not None else []
    details += ["simulated"] if failure.simulated else []
    device = f"{memory} ({', '.join(details)})" if details else memory
    return f"All tensors in {device}. A tensor that several objects hold is counted once."


def _total_bytes(failure: Failure, memory_held: MemoryHolders) -> float:
    """Return what shares are relative to: the device's memory or, if its size is unknown, all memory held."""
    return float(failure.capacity_bytes or memory_held.total_bytes or 1)


def _row(holding: MemoryHolder, total_bytes: float) -> Row:
    return _cells(
        holding.name, KIND_LABELS.get(holding.kind, holding.kind), holding.bytes, total_bytes, holding.largest or ""
    )


def _rest(rest: Sequence[MemoryHolder], total_bytes: float) -> Iterator[Row]:
    if rest:
        yield _cells(count(len(rest), "other"), "", sum(each.bytes for each in rest), total_bytes)


def _outside_tensors(failure: Failure, total_bytes: float) -> Iterator[Row]:
    """Yield a row for memory that no tensor holds: PyTorch's cache, other processes, free memory."""
    if failure.reserved_bytes is not None and failure.allocated_bytes is not None:
        unused = failure.reserved_bytes - failure.allocated_bytes
        if unused > 0:
            yield _cells("PyTorch", "cached, not in use", unused, total_bytes)
    if failure.others_bytes:
        yield _cells("other processes", "", failure.others_bytes, total_bytes)
    if failure.free_bytes is not None:
        yield _cells("free", "", failure.free_bytes, total_bytes)


def _cells(holder: str, kind: str, held_bytes: float, total_bytes: float, largest: str = "") -> Row:
    return Row((holder, kind, largest, size(held_bytes), percent(held_bytes / total_bytes, 1)))
