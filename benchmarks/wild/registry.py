"""Finds the loops: every file `loops/<family>/<name>.py` defines one as `LOOP`."""

import dataclasses
import importlib
from pathlib import Path

from benchmarks.wild.loop import Loop

FOLDER = Path(__file__).parent / "loops"


def loop_names() -> list[str]:
    """The names of all loops, `family/name`, in alphabetical order."""
    files = FOLDER.glob("*/*.py")
    return sorted(f"{file.parent.name}/{file.stem}" for file in files if not file.stem.startswith("_"))


def matching_names(patterns: list[str]) -> list[str]:
    """The loops that equal a pattern or belong to a family of that name; all loops without patterns."""
    names = loop_names()
    if not patterns:
        return names
    matches = [name for name in names if any(name == p or name.split("/")[0] == p.rstrip("/") for p in patterns)]
    if not matches:
        raise ValueError(f"no loop matches {', '.join(patterns)}; the loops are {', '.join(names)}")
    return matches


def load_loop(name: str) -> Loop:
    """Import the loop of this name."""
    module = importlib.import_module(f"benchmarks.wild.loops.{name.replace('/', '.')}")
    loop = module.LOOP
    if not isinstance(loop, Loop):
        raise TypeError(f"LOOP in {module.__file__} is not a Loop")
    return dataclasses.replace(loop, name=name)
