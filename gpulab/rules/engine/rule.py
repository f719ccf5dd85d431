"""Rule: a question, when it can be asked, and which other findings would explain its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import Finding, Unjudged
from gpulab.rules.engine.needs import LEDGER, Need


class Stage(IntEnum):
    """The order in which causes are looked for; among findings that save the same the earlier comes first."""

    ENDING = 0  # why the run did not end well
    ENVIRONMENT = 1  # what scales everything: throttling, sharing, the wrong device
    IDLE = 2  # why the device had nothing to do
    BUSY = 3  # how it worked when it did
    MEMORY = 4
    STATE = 5  # what is so, with nothing wrong about it


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A question: the function that asks it, what it is about, what it needs, and what would explain its answer."""

    ask: Callable[[Evidence], Finding | Unjudged | None]
    about: str  # what it judges, as a noun: "workers that are late"
    stage: Stage
    needs: tuple[Need, ...] = (LEDGER,)
    masked_by: tuple[str, ...] = ()  # rules whose finding about the same time explains this one's
    lesson: str = ""  # the notebook of the course that teaches it, as "05_data_loading"; "" while there is none

    @property
    def name(self) -> str:
        """The name of the function, which is the name of the rule."""
        return self.ask.__name__

    @property
    def topic(self) -> str:
        """The topic of the rule: the folder its function is in."""
        return self.ask.__module__.split(".")[-2]
