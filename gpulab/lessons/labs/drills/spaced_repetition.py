"""Spaced repetition: the gap to the next review grows with every correct answer, and restarts after a wrong one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

GAPS_DAYS = (1, 3, 7, 21)  # after the first correct answer, the second, and so on; the last gap repeats


@dataclass(frozen=True, kw_only=True)
class Deck:
    """Streak of correct answers and next due day of each question. Immutable: an answer returns a new deck."""

    streaks: Mapping[str, int] = field(default_factory=dict)
    due_days: Mapping[str, int] = field(default_factory=dict)

    def after_answer(self, key: str, right: bool, day: int) -> Deck:
        """Return the deck after an answer: due after the next gap, or tomorrow if the answer was wrong."""
        streak = self.streaks.get(key, 0) + 1 if right else 0
        gap = GAPS_DAYS[min(streak, len(GAPS_DAYS)) - 1] if streak else GAPS_DAYS[0]
        return replace(self, streaks={**self.streaks, key: streak}, due_days={**self.due_days, key: day + gap})

    def due(self, day: int) -> tuple[str, ...]:
        """Return the questions due on a day, the longest overdue first."""
        overdue = [(due_day, key) for key, due_day in self.due_days.items() if due_day <= day]
        return tuple(key for _, key in sorted(overdue))


def review_days(days: int) -> tuple[int, ...]:
    """Return the review days of a question that is always answered correctly, within `days` days."""
    review_days, deck = [0], Deck().after_answer("it", True, 0)
    for day in range(1, days):
        if deck.due(day):
            review_days.append(day)
            deck = deck.after_answer("it", True, day)
    return tuple(review_days)
