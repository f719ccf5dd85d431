"""Differences between a plain and a recorded run that gpulab documents, each with its reason.

A difference that no entry of this list accepts is a defect.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.program import Observation, Program

MIB = 2**20
_ARGUMENTS = re.compile(r"\(.*?\)(?= <- |$)|\(.*$", re.DOTALL)


@dataclass(frozen=True)
class Difference:
    """One field that differs: its name, its value in the plain run and in the recorded run."""

    field: str
    plain: str
    recorded: str
    origin: str = ""

    @property
    def kind(self) -> str:
        """The difference without numbers: differences of one kind are one defect."""
        texts = [re.sub(r"\d+", "#", text)[:160] for text in (self.plain, self.recorded)]
        if self.field == "outcome":  # the values and messages vary
            texts = [_ARGUMENTS.sub("", text) if self.origin.strip() else text for text in texts]
            texts[0] = "as the program ends" if self.origin.startswith(tuple("abcdefghijklmnopqrstuvwxyz")) else texts[0]
        plain, recorded = texts
        return f"{self.field}: {plain} -> {recorded}" + (f" [{self.origin}]" if self.origin else "")


Accepts = Callable[[Program, Difference, Observation], bool]


@dataclass(frozen=True)
class DocumentedDifference:
    """A difference that is allowed, and why."""

    name: str
    reason: str
    accepts: Accepts


DOCUMENTED = (
    DocumentedDifference(
        "one call",
        "gpulab may call a method of a user's object once, e.g. the length of a batch sampler",
        lambda _, difference, __: (
            difference.field.startswith("calls ")
            and int(difference.recorded or 0) - int(difference.plain or 0) == 1
        ),
    ),
    DocumentedDifference(
        "atexit slot",
        "Python keeps the empty slot of an atexit callback that the monitor registered and unregistered",
        lambda program, difference, _: program.recorder == "monitor" and difference.field == "left behind: atexit",
    ),
    DocumentedDifference(
        "log of PyTorch",
        "torch.profiler itself writes this line to stderr with profile_memory; silencing it would change the "
        "user's own log level",
        lambda program, difference, _: (
            difference.field == "stderr" and "profile deep" in program.recorder and _only_kineto(difference)
        ),
    ),
)


def _only_kineto(difference: Difference) -> bool:
    lines = difference.recorded.splitlines()
    rest = [line for line in lines if not re.match(r"\[W.* CPUAllocator\.cpp:\d+\] Memory block of unknown size", line)]
    return rest == difference.plain.splitlines()


def documented_reason(program: Program, difference: Difference, recorded: Observation) -> str | None:
    """Return the name of the entry that accepts a difference; None if it is a defect."""
    return next((entry.name for entry in DOCUMENTED if entry.accepts(program, difference, recorded)), None)
