"""What is said to an answer of lesson 20: which of its three words are wrong, and the reading that contradicts each.

For every cause there are signs: counters that read so wherever it is at work. An answer is wrong for a reason that the
learner can look up in the evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpulab.lessons.labs.drills import drills
from gpulab.lessons.labs.drills.cases import ACTIONS, CASES, CAUSES, Case
from gpulab.lessons.labs.drills.counters import COUNTERS

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Sign:
    """How a counter reads wherever a cause is at work: a least, a bound that it stays below, or absent."""

    counter: str
    least: float | None = None
    below: float | None = None
    absent: bool = False
    needed: bool = True  # an absent reading contradicts it too

    def contradicted(self, value: float | None) -> bool:
        """Whether the cause cannot be at work where the counter reads this."""
        if value is None:
            return self.needed and not self.absent
        too_low = self.least is not None and value < self.least
        return self.absent or too_low or (self.below is not None and value >= self.below)

    @property
    def told(self) -> str:
        """The reading in words: "loader at 25 % or more"."""
        told = COUNTERS[self.counter].told
        if self.absent:
            return f"no {self.counter} at all"
        if self.least is not None:
            return f"{self.counter} at {told(self.least)} or more"
        return f"{self.counter} below {told(self.below)}"


_LATE = Sign(counter="loader", least=0.25)
_BUSY = Sign(counter="busy", least=0.5)
SIGNS: Mapping[str, tuple[Sign, ...]] = {
    "no_workers": (_LATE, Sign(counter="worker_cpu", absent=True)),
    "too_few_workers": (_LATE, Sign(counter="worker_cpu", below=0.5)),
    "cpu_bound_loading": (_LATE, Sign(counter="worker_cpu", least=0.5)),
    "host_python": (Sign(counter="python", least=0.25),),
    "dispatch_bound": (Sign(counter="calls", least=0.25),),
    "host_syncs": (Sign(counter="to_host", least=MIB),),
    "pageable_copies": (Sign(counter="to_gpu", least=MIB),),
    "no_tf32": (Sign(counter="tensor_cores", below=0.5), Sign(counter="matrix", least=0.5)),
    "unfused_elementwise": (Sign(counter="matrix", below=0.5), _BUSY),
    "small_batch": (Sign(counter="filled", below=0.7), Sign(counter="calls", below=0.25)),
    "unfused_optimizer": (Sign(counter="optimizer", least=0.2),),
    "memory_growth": (Sign(counter="growth", least=MIB / 2),),
    "device_bound": (
        _BUSY,
        Sign(counter="growth", below=MIB / 2, needed=False),
        Sign(counter="optimizer", below=0.2, needed=False),
        Sign(counter="matrix", least=0.5, needed=False),
        Sign(counter="tensor_cores", least=0.5, needed=False),
        Sign(counter="filled", least=0.7, needed=False),
    ),
}
# What each first action is for.
TREATS: Mapping[str, str] = {"more workers": "too_few_workers", **{each.action: each.cause for each in CASES}}


def problem(case: Case, pick: Any) -> str | None:
    """What is still wrong with (cause, action, counter), with the reason; None where all three are right."""
    if not isinstance(pick, tuple | list) or len(pick) != 3:
        return 'give three words, as ("too_few_workers", "more workers", "worker_cpu")'
    words = tuple(pick)
    for word, known, what in zip(words, (CAUSES, ACTIONS, COUNTERS), ("cause", "action", "counter"), strict=True):
        if word not in known:
            return f"there is no {what} {word!r}; the words are in the lists above"
    cause, action, counter = words
    right = case.right(words)
    told = []
    if not right[0]:
        told.append(f"The cause does not fit: {contradiction(case, cause)}.")
    if not right[1]:
        told.append(f"The first action does not fit: {_treats(action, cause, right[0])}.")
    if not right[2]:
        told.append(f"The counter does not exclude {case.rival}: {_tells_nothing(case, counter)}.")
    return " ".join(told) or None


def contradiction(case: Case, cause: str) -> str | None:
    """The reading of a case that a cause does not go with, in words; None where none contradicts it."""
    values = drills.reads(case.number)
    sign = next((each for each in SIGNS[cause] if each.contradicted(values[each.counter])), None)
    if sign is None:
        return None
    return f"{cause} would show {sign.told}, which here {_reads(values[sign.counter], sign.counter)}"


def _treats(action: str, cause: str, cause_is_right: bool) -> str:
    if not cause_is_right and TREATS[action] == cause:
        return f"{action} follows from that cause, and falls with it"
    return f"{action} is for {TREATS[action]}"


def _tells_nothing(case: Case, counter: str) -> str:
    here, there = drills.reads(case.number)[counter], drills.reads(case.rival_file)[counter]
    if drills.told_apart(here, there):
        return f"in a run of it {counter} {_reads(there, counter)}, but for another reason"
    return f"{counter} {_reads(here, counter)} here, and {_reads(there, counter)} in a run with {case.rival}: too close"


def _reads(value: float | None, counter: str) -> str:
    return "is absent" if value is None else f"reads {COUNTERS[counter].told(value)}"
