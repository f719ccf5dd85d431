"""Areas of the campaign: each makes the program of a number."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.areas import environments, objects, pipeline, signals, virtual
from tests.chaos.program import Program


@dataclass(frozen=True)
class Area:
    """A generator of programs, and how many of them make up the full campaign."""

    count: int
    make: Callable[[int, random.Random], Program]


AREAS = {
    "objects": Area(1900, objects.make),
    "signals": Area(2400, signals.make),
    "environments": Area(500, environments.make),
    "pipeline": Area(600, pipeline.make),
    "virtual": Area(400, virtual.make),
}
