"""Finds the loops: every file `loops/<family>/<name>.py` defines one as `LOOP`.

The loops in `set_aside/<family>/<name>.py` are never used to change a rule or a prediction: their names start with
"set_aside/", and they are measured only if asked for.
"""

import dataclasses
import importlib
from pathlib import Path

from benchmarks.wild.loop import Loop

FOLDER = Path(__file__).parent
OPEN, SET_ASIDE = "loops", "set_aside"


def loop_names(part: str = OPEN) -> list[str]:
    """The names of the loops of a part, `family/name` or `set_aside/family/name`, in alphabetical order."""
    files = (FOLDER / part).glob("*/*.py")
    prefix = "" if part == OPEN else f"{part}/"
    return sorted(f"{prefix}{file.parent.name}/{file.stem}" for file in files if not file.stem.startswith("_"))


def matching_names(patterns: list[str]) -> list[str]:
    """The loops that equal a pattern or begin with it as with a folder; all open loops without patterns."""
    if not patterns:
        return loop_names()
    names = [*loop_names(), *loop_names(SET_ASIDE)]
    matches = [name for name in names if any(f"{name}/".startswith(f"{pattern.rstrip('/')}/") for pattern in patterns)]
    if not matches:
        raise ValueError(f"no loop matches {', '.join(patterns)}; the loops are {', '.join(names)}")
    return matches


def load_loop(name: str) -> Loop:
    """Import the loop of this name."""
    path = name if name.startswith(f"{SET_ASIDE}/") else f"{OPEN}/{name}"
    module = importlib.import_module(f"benchmarks.wild.{path.replace('/', '.')}")
    loop = module.LOOP
    if not isinstance(loop, Loop):
        raise TypeError(f"LOOP in {module.__file__} is not a Loop")
    return dataclasses.replace(loop, name=name)
