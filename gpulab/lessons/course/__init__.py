"""The course: one module for each notebook, with its title, questions, hints and summary card.

To add a lesson, add a module nNN_name that defines `LESSON` to the folder of its topic, and a notebook with the
same name.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from functools import cache

from gpulab.errors import GpulabError
from gpulab.lessons.lesson import Lesson
from gpulab.wording import did_you_mean

# Learning paths: the numbers of their lessons, in order.
PATHS: dict[str, tuple[str, ...]] = {
    "one evening": ("00", "01", "05", "08"),
    "training is slow": ("00", "01", "05", "06", "07", "03", "04", "08", "09", "12", "18", "20"),
    "out of memory": ("00", "01", "09", "10", "14", "08"),
    "cluster": ("00", "01", "05", "03", "09", "10", "15", "16", "17"),
    "kernels": ("00", "01", "02", "13", "12"),
    "design a model": ("00", "01", "03", "04", "08", "09", "11", "14"),
    "teach it": ("00", "01", "05", "07", "08", "09", "18", "20"),
}

_LESSON = re.compile(r"\.n\d\d_\w+$")  # other modules hold parts of a long lesson


@cache
def lessons() -> tuple[Lesson, ...]:
    """Return all lessons, in the order of their numbers."""
    modules = (module.name for module in pkgutil.walk_packages(__path__, f"{__name__}.") if _LESSON.search(module.name))
    return tuple(sorted((importlib.import_module(name).LESSON for name in modules), key=lambda one: one.number))


def lesson(id: str) -> Lesson:
    """Return the lesson with this name or number ("05", "5"). Raises GpulabError if there is none."""
    for candidate in lessons():
        if id == candidate.id or id.zfill(2) == candidate.number:
            return candidate
    names = [item.id for item in lessons()]
    raise GpulabError(
        f"There is no lesson {id!r}.",
        why=f"the lessons are {', '.join(names)}",
        fix=did_you_mean(id, names) or "use one of these names",
    )
