"""Limits for reading a trace, and the names of losses."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MIB, GIB = 2**20, 2**30
COMPRESSION_RATIO = 16  # text to file; traces compress 9 to 30 times

CUT_OFF = "the file ends early"
CORRUPT = "compressed data damaged from some point on"
UNREADABLE = "event that is not JSON"
NO_TIME = "event without a usable time"
FAR_AWAY = "event more than a week from the others"
TOO_LONG = "event that lasts too long, among many of its kind"
NEGATIVE = "negative duration, taken as zero"
TOO_LARGE = "event above the size limit"
TEXT_LIMIT = "text above the limit, not read"
EVENT_LIMIT = "events above the limit, not read"
TOO_MUCH_DAMAGE = "too much damage, the rest not read"
METADATA = "metadata that is not JSON"

ENDS_EARLY = frozenset(
    (CUT_OFF, CORRUPT, TEXT_LIMIT, EVENT_LIMIT, TOO_MUCH_DAMAGE)
)  # everything after some point is lost


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Upper limits for `read`. The defaults accept every genuine trace and bound a malicious one."""

    text_bytes: int = 8 * GIB  # after decompression
    ratio: int = 200  # text to file, for large files; real traces compress 9 to 30 times
    ratio_from_bytes: int = 256 * MIB
    event_bytes: int = 64 * MIB  # one event, or the metadata before or after all of them
    events: int = 50_000_000
    damaged: int = 100_000  # unreadable events; then reading stops


@dataclass
class Losses:
    """Losses, counted by cause, and the repairs that were necessary."""

    lost: Counter[str] = field(default_factory=Counter)
    repairs: set[str] = field(default_factory=set)

    def add(self, cause: str, count: int = 1) -> None:
        """Count losses of this cause."""
        if count:
            self.lost[cause] += count
