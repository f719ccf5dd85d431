"""The one thing the live panel says aloud: a GPU has been idle for a while, and what the loop did meanwhile."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from gpulab.capture.live.snapshot import Live

THRESHOLD_FRAC, PATIENCE_S = 0.5, 10.0
SMOOTH_S = 2.0  # a single reading of the driver covers less than a second: judged is the mean of so long
_MOSTLY_FRAC = 0.3  # a line the loop was seen at in so many of the looks is worth naming


@dataclass(frozen=True, kw_only=True)
class Alert:
    """What is wrong now; `said` is the sentence of its beginning, to be read out once."""

    gpus: tuple[int, ...]
    since_s: float
    text: str
    said: str


class Watcher:
    """Sees one Live after another; an episode begins when a GPU was under the threshold for `patience_s`.

    Only while steps are being made: between cells nobody expects a GPU to work. Of several GPUs only those count that
    worked at all while the loop ran, as a program may use one of eight.
    """

    def __init__(self, threshold_frac: float = THRESHOLD_FRAC, patience_s: float = PATIENCE_S) -> None:
        self._threshold_frac, self._patience_s = threshold_frac, patience_s
        self._readings: dict[int, deque[tuple[float, float]]] = {}
        self._under_s: dict[int, float] = {}  # since when
        self._frames: deque[tuple[float, str]] = deque()
        self._said = ""

    def look(self, live: Live) -> Alert | None:
        """The episode that is on, if any."""
        now_s = live.elapsed_s
        if not live.running or live.steps < 2:
            self._readings.clear()
            self._under_s.clear()
            self._frames.clear()
            self._said = ""
            return None
        if live.frame is not None:
            self._frames.append((now_s, live.frame))
        while self._frames and self._frames[0][0] < now_s - self._patience_s:
            self._frames.popleft()
        for index in live.used_gpus:
            self._judge(index, now_s, live.gpus[index].util_frac)
        long = {index: now_s - at for index, at in self._under_s.items() if now_s - at >= self._patience_s}
        if not long:
            self._said = ""
            return None
        since_s = min(long.values())
        gpus = tuple(sorted(long))
        text = (
            f"{self._named(gpus, live)} under {100 * self._threshold_frac:.0f} % for {since_s:.0f} s{self._why(live)}"
        )
        self._said = self._said or text
        return Alert(gpus=gpus, since_s=since_s, text=text, said=self._said)

    def _judge(self, index: int, now_s: float, util_frac: float | None) -> None:
        past = self._readings.setdefault(index, deque())
        if util_frac is None:  # not measured is not idle
            past.clear()
            self._under_s.pop(index, None)
            return
        past.append((now_s, util_frac))
        while past[0][0] < now_s - SMOOTH_S:
            past.popleft()
        if sum(value for _, value in past) / len(past) < self._threshold_frac:
            self._under_s.setdefault(index, now_s)
        else:
            self._under_s.pop(index, None)

    def _named(self, gpus: tuple[int, ...], live: Live) -> str:
        if len(live.gpus) == 1:
            return "GPU"
        if len(gpus) == len(live.gpus):
            return f"all {len(gpus)} GPUs"
        if len(gpus) == 1:
            return f"GPU {gpus[0]}"
        return f"GPUs {', '.join(map(str, gpus[:-1]))} and {gpus[-1]}"

    def _why(self, live: Live) -> str:
        waiting = live.waiting_lately_frac
        told = f"; the loop waits for data {100 * waiting:.0f} % of the time" if waiting is not None else ""
        if waiting is not None and waiting >= 0.5:
            return told
        line, times = next(iter(Counter(line for _, line in self._frames).most_common(1)), ("", 0))
        if times >= _MOSTLY_FRAC * max(len(self._frames), 1) and line:
            told += f"; it is mostly at {line}"
        return told
