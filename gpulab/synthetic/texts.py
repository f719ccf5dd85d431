"""Documents as token ids with realistic lengths: many short, few long."""

from __future__ import annotations

import numpy as np

Tokens = np.ndarray[tuple[int], np.dtype[np.int64]]

VOCABULARY = 1000
_MEDIAN, _SPREAD = 48.0, 0.8  # of a log-normal: half are shorter than this, one in six longer than twice it


def texts(count: int = 512, shortest: int = 4, longest: int = 512, seed: int = 0) -> list[Tokens]:
    """Return `count` documents of token ids below VOCABULARY, with log-normal lengths from `shortest` to `longest`."""
    random_state = np.random.default_rng(seed)
    lengths = np.exp(random_state.normal(np.log(_MEDIAN), _SPREAD, count)).round().clip(shortest, longest).astype(int)
    return [
        random_state.integers(1, VOCABULARY, length, dtype=np.int64) for length in lengths
    ]  # 0 is reserved for padding
