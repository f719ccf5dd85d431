"""The course: one module for each notebook, with its title, questions, hints and card.

A lesson is added as a module here that holds `LESSON`, and a notebook of the same name.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from gpulab.errors import GpulabError
from gpulab.lessons.lesson import Lesson

# From where a learner stands to the lessons that help, in order.
PATHS: dict[str, tuple[str, ...]] = {
    "one evening": ("00", "01", "05", "08"),
    "training is slow": ("01", "05", "07", "03", "08", "12", "18", "20"),
    "out of memory": ("01", "09", "08"),
}


@cache
def lessons() -> tuple[Lesson, ...]:
    """All of them, in the order of their numbers."""
    names = sorted(each.name for each in pkgutil.iter_modules(__path__) if each.name.startswith("n"))
    return tuple(importlib.import_module(f"{__name__}.{name}").LESSON for name in names)


def lesson(id: str) -> Lesson:
    """The lesson of this name, or of this number ("05"). Raises GpulabError where there is none."""
    for one in lessons():
        if id in (one.id, one.number):
            return one
    raise GpulabError(
        f"There is no lesson {id!r}.",
        why=f"the lessons are {', '.join(one.id for one in lessons())}",
        fix="use one of these names",
    )
