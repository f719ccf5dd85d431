"""Who held memory when it ran out, as a table: largest first, and what is left of the device beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpulab.analysis.memory.holders import Held, Holding, held
from gpulab.run import Failure, Run
from gpulab.views.sheet.sheet import Block, Line, Row, Section, Table
from gpulab.wording import count, percent, size

MOST_ROWS = 12
SLIVER_FRAC = 0.0005  # what would read <0.1 % is told together
KINDS = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer": "optimizer state",
    "variable": "variable",
    "output": "value of an earlier cell",
    "traceback": "error of an earlier cell",
    "graph": "kept for backward()",
    "other": "",
}


def memory(run: Run) -> Section | None:
    """The table, for a run that memory ended; None for any other."""
    failure = run.failure
    if failure is None:
        return None
    found = held(run)
    whole = _whole(failure, found)
    shown = [each for each in found.holdings[:MOST_ROWS] if each.bytes >= SLIVER_FRAC * whole]
    rest = found.holdings[len(shown) :]
    rows = [*(_row(each, whole) for each in shown), *_rest(rest, whole), *_beside(failure, whole)]
    if not rows:
        return None
    header = ("who", "how", "largest tensor", "size", "share")
    blocks: list[Block] = [Table(header=header, rows=tuple(rows), left=3, caption=_caption(failure))]
    if failure.device is None:
        blocks.append(Line("Of host memory, only what PyTorch's tensors hold is seen here.", soft=True))
    return Section("Who holds the memory", tuple(blocks))


def _caption(failure: Failure) -> str:
    where = "host memory" if failure.device is None else f"the memory of GPU {failure.device}"
    told = [size(failure.capacity_bytes)] if failure.capacity_bytes is not None else []
    told += ["simulated"] if failure.simulated else []
    device = f"{where} ({', '.join(told)})" if told else where
    return f"Every tensor in {device}, once: for the first who would have to let it go."


def _whole(failure: Failure, found: Held) -> float:
    """What shares are shares of: the device, or all that was found where its size is not known."""
    return float(failure.capacity_bytes or found.total_bytes or 1)


def _row(holding: Holding, whole: float) -> Row:
    return _cells(holding.who, KINDS.get(holding.kind, holding.kind), holding.bytes, whole, holding.largest or "")


def _rest(rest: Sequence[Holding], whole: float) -> Iterator[Row]:
    if rest:
        yield _cells(count(len(rest), "other"), "", sum(each.bytes for each in rest), whole)


def _beside(failure: Failure, whole: float) -> Iterator[Row]:
    """What no tensor holds: PyTorch's free pieces, other processes, what was free."""
    if failure.reserved_bytes is not None and failure.allocated_bytes is not None:
        unused = failure.reserved_bytes - failure.allocated_bytes
        if unused > 0:
            yield _cells("PyTorch", "kept, not in use", unused, whole)
    if failure.others_bytes:
        yield _cells("other processes", "", failure.others_bytes, whole)
    if failure.free_bytes is not None:
        yield _cells("free", "", failure.free_bytes, whole)


def _cells(who: str, how: str, count: float, whole: float, largest: str = "") -> Row:
    return Row((who, how, largest, size(count), percent(count / whole, 1)))
