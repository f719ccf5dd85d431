"""Tones with noise, similar to speech or music in shape and cost, with one class per pitch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

PITCHES_HZ = (220.0, 330.0, 440.0, 660.0)


def sounds(count: int = 64, seconds: float = 1.0, rate: int = 16_000, seed: int = 0) -> list[npt.NDArray[np.float32]]:
    """Return `count` waves of `seconds` x `rate` samples in -1..1; the class of wave i is i modulo four, its pitch."""
    random_state = np.random.default_rng(seed)
    at_s = np.arange(round(seconds * rate)) / rate
    waves = []
    for index in range(count):
        tone = np.sin(2 * np.pi * PITCHES_HZ[index % len(PITCHES_HZ)] * at_s + random_state.uniform(0, 2 * np.pi))
        noisy = 0.7 * tone * np.exp(-random_state.uniform(0, 2) * at_s) + random_state.normal(0, 0.05, len(at_s))
        waves.append(noisy.clip(-1, 1).astype(np.float32))
    return waves
