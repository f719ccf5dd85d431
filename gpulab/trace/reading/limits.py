"""How much of a trace is read at most, and the words for what was lost on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MIB, GIB = 2**20, 2**30

CUT_OFF = "the file ends early"
CORRUPT = "compressed data damaged from some point on"
UNREADABLE = "event that is not JSON"
NO_TIME = "event without a usable time"
FAR_AWAY = "event more than a week from the others"
NEGATIVE = "negative duration, taken as zero"
TOO_LARGE = "event above the size limit"
TEXT_LIMIT = "text above the limit, not read"
EVENT_LIMIT = "events above the limit, not read"
GIVEN_UP = "too much damage, the rest not read"
METADATA = "metadata that is not JSON"

ENDS_EARLY = frozenset((CUT_OFF, CORRUPT, TEXT_LIMIT, EVENT_LIMIT, GIVEN_UP))  # all from some point on is lost


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What `read` takes at most. The defaults let every honest trace through and bound a hostile one."""

    text_bytes: int = 8 * GIB  # after decompression
    ratio: int = 200  # text to file, once there is much of it; real traces compress 9 to 30 times
    ratio_from_bytes: int = 256 * MIB
    event_bytes: int = 64 * MIB  # one event, or the metadata before or after all of them
    events: int = 50_000_000
    damaged: int = 100_000  # events that cannot be read; then the rest is not tried


@dataclass
class Losses:
    """What could not be read, counted by cause, and what had to be mended to be read at all."""

    lost: Counter[str] = field(default_factory=Counter)
    mended: set[str] = field(default_factory=set)

    def add(self, cause: str, count: int = 1) -> None:
        """So many more were lost to this cause."""
        if count:
            self.lost[cause] += count
