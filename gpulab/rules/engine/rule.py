"""Rule: a check on a run, what it needs, and which other findings explain its finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import Finding, Unjudged
from gpulab.rules.engine.needs import LEDGER, OPERATORS, Need


class Stage(IntEnum):
    """The order in which causes are reported; among findings with equal savings, the earlier stage comes first."""

    ENDING = 0  # the run failed
    ENVIRONMENT = 1  # affects every step: throttling, sharing, the wrong device
    IDLE = 2  # why the device was idle
    BUSY = 3  # why busy time is longer than necessary
    MEMORY = 4
    STATE = 5  # facts about the run that are not faults


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule: the function that checks for a cause, its inputs, and the rules whose findings explain it."""

    check: Callable[[Evidence], Finding | Unjudged | None]
    about: str  # the cause it looks for, as a noun phrase: "too few DataLoader workers"
    stage: Stage
    needs: tuple[Need, ...] = (LEDGER, OPERATORS)
    masked_by: tuple[str, ...] = ()  # rules that explain this finding if theirs covers the same time
    lesson: str = ""  # the course notebook about it, e.g. "05_data_loading"; "" if there is none

    @property
    def name(self) -> str:
        """The name of the rule, which is the name of its function."""
        return self.check.__name__

    @property
    def topic(self) -> str:
        """The topic of the rule, which is the folder of its function."""
        return self.check.__module__.split(".")[-2]
