"""The collectives of a job as a table: sizes, transfer times, both bandwidths, and the share of the link."""

from __future__ import annotations

from collections.abc import Sequence

from gpulab.analysis.ranks.bandwidth import Bandwidth
from gpulab.views.sheet.sheet import Block, Line, Row, TableBlock
from gpulab.wording import count, duration, metric, percent, size

_MAX_ROWS = 24
_UNKNOWN = "-"


def bandwidth_blocks(entries: Sequence[Bandwidth]) -> tuple[Block, ...]:
    """Return the table of bandwidths and a sentence about the assumed link; a sentence if sizes were not recorded."""
    if not entries:
        return (
            Line(
                "The bandwidth of the collectives is not known: their sizes were not recorded. NCCL traces of PyTorch "
                "2.2 and later contain them; of gloo, gpulab records the sizes of DistributedDataParallel's buckets.",
                soft=True,
            ),
        )
    groups = len({entry.group for entry in entries}) > 1
    rows = tuple(Row(_cells(entry, groups)) for entry in entries[:_MAX_ROWS])
    header = (
        "collective", *(("group",) if groups else ()), "ranks", "size", "count", "transfers", "algorithm bandwidth",
        "bus bandwidth", "of the link",
    )  # fmt: skip
    return (
        TableBlock(header=header, rows=rows, text_columns=2 if groups else 1, caption=_caption(entries)),
        *(Line(text, soft=True) for text in _link_sentences(entries)),
    )


def _cells(entry: Bandwidth, groups: bool) -> tuple[str, ...]:
    low, high = size(entry.min_bytes), size(entry.max_bytes)
    least = ">= " if entry.is_lower_limit else ""
    return (
        entry.kind,
        *((entry.group or _UNKNOWN,) if groups else ()),
        str(entry.ranks),
        low if low == high else f"{low} to {high}",
        f"{entry.count:,}",
        duration(entry.total_ns),
        f"{least}{metric(entry.algorithm_bytes_per_s, 'B/s')}",
        f"{least}{metric(entry.bus_bytes_per_s, 'B/s')}",
        _UNKNOWN if entry.link_frac is None else f"{least}{percent(entry.link_frac)}",
    )


def _caption(entries: Sequence[Bandwidth]) -> str:
    omitted = len(entries) - _MAX_ROWS
    text = (
        "Bandwidths as defined by nccl-tests, from the time after the arrival of the last rank: waiting is not counted."
        if not entries[0].is_lower_limit
        else "Not all ranks were recorded, so a collective may contain a wait: the fastest one gives a lower limit."
    )
    return text + (f" {count(omitted, 'row')} with less time are not listed." if omitted > 0 else "")


def _link_sentences(entries: Sequence[Bandwidth]) -> tuple[str, ...]:
    links = dict.fromkeys(entry.link for entry in entries)
    return tuple(
        f"Link: {link.name}, {metric(link.bytes_per_s, 'B/s')} in one direction, because {link.reason}."
        if link.bytes_per_s is not None
        else f"The link is unknown: {link.reason}."
        for link in links
    )
