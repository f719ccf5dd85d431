"""Odd objects of users: datasets, loaders, modules, optimizers and loops, one or two odd parts at a time."""

from __future__ import annotations

import random
from typing import Any

from tests.chaos.areas.objects import loop_endings, loop_patches, loop_settings, loops
from tests.chaos.areas.objects.datasets import DATASETS
from tests.chaos.areas.objects.loaders import LOADERS, WORKER_LOADERS
from tests.chaos.areas.objects.loop import LOOPS
from tests.chaos.areas.objects.models import MODULES, OPTIMIZERS
from tests.chaos.program import Log, Program
from tests.chaos.recorders import PROFILERS

PARTS: dict[str, dict[str, Any]] = {
    "dataset": DATASETS,
    "loader": LOADERS,
    "module": MODULES,
    "optimizer": OPTIMIZERS,
    "loop": LOOPS,
}
LOOP_MODULES = (loops, loop_patches, loop_settings, loop_endings)  # importing them fills LOOPS
_SINGLES = [(part, name) for part, names in PARTS.items() for name in names if name != "ordinary"]
# The first probes try each odd part alone, with recorders in turn; the others two or three odd parts.
_RECORDERS = ("profile steps", "cell steps", "monitor", "profile", "profile sensors", "profile deep", "cell")


def make(number: int, dice: random.Random) -> Program:
    """Return the program of this number."""
    if number < 2 * len(_SINGLES):
        part, name = _SINGLES[number % len(_SINGLES)]
        turn = number // len(_SINGLES) * 2 + number
        return program({part: name}, _RECORDERS[turn % len(_RECORDERS)])
    parts = dice.sample(sorted(PARTS), k=dice.choice((2, 2, 2, 3)))
    return program({part: dice.choice(sorted(PARTS[part])) for part in parts}, dice.choice(PROFILERS))


def program(choice: dict[str, str], recorder: str) -> Program:
    """Return the training program with these parts."""
    if choice.get("loader") in WORKER_LOADERS:
        # A worker that dies raises from PyTorch's signal handler at any instant: two runs cannot be compared.
        choice = {part: name for part, name in choice.items() if part not in ("dataset", "loop")}
    names = {part: choice.get(part, "ordinary") for part in PARTS}

    def run(log: Log) -> Any:
        dataset = DATASETS[names["dataset"]](log)
        loader = LOADERS[names["loader"]](log, dataset)
        module = MODULES[names["module"]](log)
        optimizer = OPTIMIZERS[names["optimizer"]](log, module)
        return LOOPS[names["loop"]](log, loader, module, optimizer)

    odd = {part: name for part, name in names.items() if name != "ordinary"}
    label = ", ".join(f"{part} {name}" for part, name in odd.items()) or "ordinary"
    return Program(name=label, recorder=recorder, run=run, size=len(odd))
