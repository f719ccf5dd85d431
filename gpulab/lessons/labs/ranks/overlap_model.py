"""A small model of the backward pass with bucketed all-reduces: which part of the communication is exposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class GradientBucket:
    """Gradients that one all-reduce exchanges."""

    ready_ms: float  # when the last of its gradients is computed, from the start of the backward pass
    bytes: int


def make_buckets(gradient_bytes: Sequence[int], backward_ms: float, cap_bytes: float) -> list[GradientBucket]:
    """Fill buckets in the order in which the backward pass computes gradients; the last one may be smaller.

    Each gradient takes an equal share of the backward pass. A bucket is complete when it has at least `cap_bytes`, as
    in DistributedDataParallel.
    """
    buckets: list[GradientBucket] = []
    size = 0
    for index, count in enumerate(gradient_bytes, start=1):
        size += count
        if size >= cap_bytes or index == len(gradient_bytes):
            buckets.append(GradientBucket(backward_ms * index / len(gradient_bytes), size))
            size = 0
    return buckets
