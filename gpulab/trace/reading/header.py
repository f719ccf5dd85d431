"""Metadata before and after the events of a trace."""

from __future__ import annotations

from gpulab.trace.reading.chunk_events import NO_HEADER, Header
from gpulab.trace.reading.decoder import parse_header
from gpulab.trace.reading.limits import CUT_OFF, METADATA, Losses
from gpulab.trace.reading.repair import repair_json


def parse_header_around(before: bytes, after: bytes) -> Header | None:
    """Metadata around the events; None if it is not JSON even after a repair."""
    text = before + b'"traceEvents":[]' + after
    header = parse_header(text)
    return parse_header(repair_json(text)[0]) if header is None else header


def parse_header_after(after: bytes, is_array: bool, losses: Losses) -> Header:
    """Metadata in the text after the events, starting at the bracket that ends them."""
    inside = after.strip().removeprefix(b"]").strip()
    if is_array or inside == b"}":
        return NO_HEADER
    if inside.endswith(b"}"):
        inside = inside.removesuffix(b"}")
    else:  # it may end in the middle of a number
        losses.lost[CUT_OFF] = 1
        inside = inside.rpartition(b",")[0]
    inside = inside.strip(b" \t\r\n,")
    header = parse_header_around(b"{", (b"," + inside if inside else b"") + b"}")
    losses.add(METADATA, 1 if header is None else 0)
    return header or NO_HEADER


def merge_headers(before: Header, after: Header) -> Header:
    """Merge both; where both have a value, the later one wins."""
    return {key: before[key] if value is None else value for key, value in after.items()}
