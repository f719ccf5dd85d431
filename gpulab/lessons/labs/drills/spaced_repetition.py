"""When to be asked again: the gap grows with every right answer, and begins anew with a wrong one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

GAPS_DAYS = (1, 3, 7, 21)  # after the first right answer, the second, and so on; the last gap stays


@dataclass(frozen=True, kw_only=True)
class Deck:
    """How often each question was right in a row, and the day on which it is due again; an answer makes a new deck."""

    streaks: Mapping[str, int] = field(default_factory=dict)
    due_days: Mapping[str, int] = field(default_factory=dict)

    def answered(self, key: str, right: bool, day: int) -> Deck:
        """The deck after an answer: due again after the next gap, or tomorrow if it was wrong."""
        streak = self.streaks.get(key, 0) + 1 if right else 0
        gap = GAPS_DAYS[min(streak, len(GAPS_DAYS)) - 1] if streak else GAPS_DAYS[0]
        return replace(self, streaks={**self.streaks, key: streak}, due_days={**self.due_days, key: day + gap})

    def due(self, day: int) -> tuple[str, ...]:
        """What is to be asked on a day, the longest due first."""
        late = [(when, key) for key, when in self.due_days.items() if when <= day]
        return tuple(key for _, key in sorted(late))


def days_asked(days: int) -> tuple[int, ...]:
    """The days, of so many, on which a question that is always known is asked."""
    asked, deck = [0], Deck().answered("it", True, 0)
    for day in range(1, days):
        if deck.due(day):
            asked.append(day)
            deck = deck.answered("it", True, day)
    return tuple(asked)
