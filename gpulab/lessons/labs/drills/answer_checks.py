"""Feedback on an answer of lesson 20: which of its three words are wrong, and the counter reading against each.

Every cause has expected counter readings. So an answer is wrong for a reason that the learner can look up in the
evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpulab.lessons.labs.drills import drills
from gpulab.lessons.labs.drills.cases import (
    ACTIONS,
    CASES,
    CAUSES,
    MORE_ACTIONS,
    MORE_CAUSES,
    RECORDED_CASES,
    DrillCase,
)
from gpulab.lessons.labs.drills.run_counters import ALL_COUNTERS

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class ExpectedReading:
    """The reading of a counter that a cause implies: at least a value, below a value, or absent."""

    counter: str
    least: float | None = None
    below: float | None = None
    absent: bool = False
    required: bool = True  # an absent reading contradicts the cause, too

    def contradicted(self, value: float | None) -> bool:
        """Return whether this reading excludes the cause."""
        if value is None:
            return self.required and not self.absent
        too_low = self.least is not None and value < self.least
        return self.absent or too_low or (self.below is not None and value >= self.below)

    @property
    def description(self) -> str:
        """The expected reading in words: "loader at 25 % or more"."""
        format_value = ALL_COUNTERS[self.counter].format
        if self.absent:
            return f"no {self.counter} at all"
        if self.least is not None:
            return f"{self.counter} at {format_value(self.least)} or more"
        return f"{self.counter} below {format_value(self.below)}"


_WAITS_FOR_DATA = ExpectedReading(counter="loader", least=0.25)
_GPU_BUSY = ExpectedReading(counter="busy", least=0.5)
EXPECTED_READINGS: Mapping[str, tuple[ExpectedReading, ...]] = {
    "no_workers": (_WAITS_FOR_DATA, ExpectedReading(counter="worker_cpu", absent=True)),
    "too_few_workers": (_WAITS_FOR_DATA, ExpectedReading(counter="worker_cpu", below=0.5)),
    "cpu_bound_loading": (_WAITS_FOR_DATA, ExpectedReading(counter="worker_cpu", least=0.5)),
    "host_python": (ExpectedReading(counter="python", least=0.25),),
    "dispatch_bound": (ExpectedReading(counter="calls", least=0.25),),
    "host_syncs": (ExpectedReading(counter="to_host", least=MIB),),
    "pageable_copies": (ExpectedReading(counter="to_gpu", least=MIB),),
    "no_tf32": (ExpectedReading(counter="tensor_cores", below=0.5), ExpectedReading(counter="matrix", least=0.5)),
    "unfused_elementwise": (ExpectedReading(counter="matrix", below=0.5), _GPU_BUSY),
    "small_batch": (ExpectedReading(counter="filled", below=0.7), ExpectedReading(counter="calls", below=0.25)),
    "unfused_optimizer": (ExpectedReading(counter="optimizer", least=0.2),),
    "memory_growth": (ExpectedReading(counter="growth", least=MIB / 2),),
    "device_bound": (
        _GPU_BUSY,
        ExpectedReading(counter="growth", below=MIB / 2, required=False),
        ExpectedReading(counter="optimizer", below=0.2, required=False),
        ExpectedReading(counter="matrix", least=0.5, required=False),
        ExpectedReading(counter="tensor_cores", least=0.5, required=False),
        ExpectedReading(counter="filled", least=0.7, required=False),
    ),
}
# Causes of the recordings of a real GPU.
MORE_READINGS: Mapping[str, tuple[ExpectedReading, ...]] = {
    "layout_conversions": (ExpectedReading(counter="layout", least=0.05),),
    "allocator_thrash": (ExpectedReading(counter="alloc", least=0.05),),
    "slow_storage": (_WAITS_FOR_DATA, ExpectedReading(counter="blocked", least=0.25)),
}
# The cause that each first action treats.
CAUSE_BY_ACTION: Mapping[str, str] = {"more workers": "too_few_workers", **{each.action: each.cause for each in CASES}}
_CAUSE_BY_ACTION: Mapping[str, str] = {**{each.action: each.cause for each in RECORDED_CASES}, **CAUSE_BY_ACTION}


def answer_problem(case: DrillCase, pick: Any) -> str | None:
    """Return what is wrong with (cause, action, counter), with reasons; None if all three are correct."""
    if not isinstance(pick, tuple | list) or len(pick) != 3:
        return 'give three words, such as ("too_few_workers", "more workers", "worker_cpu")'
    answer = tuple(pick)
    for word, allowed, kind in zip(
        answer,
        ({**CAUSES, **MORE_CAUSES}, {**ACTIONS, **MORE_ACTIONS}, ALL_COUNTERS),
        ("cause", "action", "counter"),
        strict=True,
    ):
        if word not in allowed:
            return f"there is no {kind} {word!r}; use one from the lists above"
    cause, action, counter = answer
    correct = case.correct_words(answer)
    problems = []
    if not correct[0]:
        reason = contradiction(case, cause) or "it leaves something unexplained; look at layout, alloc and blocked"
        problems.append(f"The cause does not fit: {reason}.")
    if not correct[1]:
        problems.append(f"The first action does not fit: {_wrong_action(action, cause, correct[0])}.")
    if not correct[2]:
        problems.append(f"The counter does not exclude {case.rival}: {_wrong_counter(case, counter)}.")
    return " ".join(problems) or None


def contradiction(case: DrillCase, cause: str) -> str | None:
    """Describe the reading of a case that contradicts a cause; None if no reading does."""
    values = drills.counter_values(case.number)
    sign = next(
        (each for each in {**EXPECTED_READINGS, **MORE_READINGS}[cause] if each.contradicted(values[each.counter])),
        None,
    )
    if sign is None:
        return None
    return f"{cause} would show {sign.description}, but here it {_reading_text(values[sign.counter], sign.counter)}"


def _wrong_action(action: str, cause: str, cause_is_right: bool) -> str:
    if not cause_is_right and _CAUSE_BY_ACTION[action] == cause:
        return f"{action} is the action for that cause, which is wrong"
    return f"{action} is for {_CAUSE_BY_ACTION[action]}"


def _wrong_counter(case: DrillCase, counter: str) -> str:
    reading, rival_reading = (
        drills.counter_values(case.number)[counter],
        drills.counter_values(case.rival_file)[counter],
    )
    if drills.clearly_different(reading, rival_reading):
        return f"{counter} {_reading_text(rival_reading, counter)} in a run with it, but for another reason"
    text, rival_text = _reading_text(reading, counter), _reading_text(rival_reading, counter)
    return f"{counter} {text} here, and {rival_text} in a run with {case.rival}: too close"


def _reading_text(value: float | None, counter: str) -> str:
    return "is absent" if value is None else f"reads {ALL_COUNTERS[counter].format(value)}"
