"""Tones with noise: as speech or music in shape and cost, with a class for each pitch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

PITCHES_HZ = (220.0, 330.0, 440.0, 660.0)


def sounds(count: int = 64, seconds: float = 1.0, rate: int = 16_000, seed: int = 0) -> list[npt.NDArray[np.float32]]:
    """So many waves of `seconds` x `rate` samples between -1 and 1; the class of wave i is i modulo four, its pitch."""
    chance = np.random.default_rng(seed)
    at_s = np.arange(round(seconds * rate)) / rate
    waves = []
    for index in range(count):
        tone = np.sin(2 * np.pi * PITCHES_HZ[index % len(PITCHES_HZ)] * at_s + chance.uniform(0, 2 * np.pi))
        noisy = 0.7 * tone * np.exp(-chance.uniform(0, 2) * at_s) + chance.normal(0, 0.05, len(at_s))
        waves.append(noisy.clip(-1, 1).astype(np.float32))
    return waves
