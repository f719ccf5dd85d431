"""Which of the user's lines ran while nothing of PyTorch did: by recorded Python frames, or by sampled ones."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from gpulab.intervals import Spans, covered_ns
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import Kind

_LINE = re.compile(r"\d+\)?$")  # the line number at the end of "function (file.py:12)" or "cell line 12"
_CELL = re.compile(r"(?:.*ipykernel_\d+[/\\]\d+\.py|<ipython-input-[^>]*>)\((\d+)\): (.*)")  # as IPython names cells
MOST_FRAC = 0.8  # a frame that holds this much of its caller's time is where to look; below it the caller is


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A Python frame, its share of the time asked about, and how that is known."""

    name: str
    frac: float  # 0-1
    by: str  # "recorded" (with_stack) or "sampled"
    samples: int | None = None  # how many samples stand behind a sampled share


def frame_of(run: Run, spans: Spans) -> Frame | None:
    """The deepest frame that holds most of `spans`; None where neither frames nor samples were taken."""
    if not spans.total_ns:
        return None
    return _recorded(run, spans) or _sampled(run, spans)


def _recorded(run: Run, spans: Spans) -> Frame | None:
    events = run.event_rows
    mine = np.flatnonzero((events["kind"] == Kind.PYTHON) & (events["thread"] == run.main_thread))
    start = events["start_ns"][mine]
    end = start + events["dur_ns"][mine]
    held = covered_ns(spans, start, end) if len(mine) else start
    worth = held > 0
    if not worth.any():
        return None
    names, held = events.words("name").where(mine[worth]), held[worth]
    start, end = start[worth], end[worth]
    code = _descend(names.codes, start, end, held, spans.total_ns, names.vocabulary)
    if code is None:
        return None
    mine = names.codes == code
    return Frame(
        name=_on_screen(names.vocabulary[code]), frac=min(1.0, held[mine].sum() / spans.total_ns), by="recorded"
    )


def _on_screen(name: str) -> str:
    """A notebook's cell by what the user sees of it; any other frame as the trace names it."""
    cell = _CELL.fullmatch(name)
    if cell is None:
        return name
    line, function = cell.groups()
    return f"cell line {line}" if function == "<module>" else f"{function} (cell line {line})"


def _descend(
    codes: np.ndarray, start: np.ndarray, end: np.ndarray, held: np.ndarray, total_ns: int, words: tuple[str, ...]
) -> int | None:
    """Walk from the whole towards single frames while one of them still holds most of its caller's time."""
    best, left_ns = None, total_ns
    longest = np.bincount(codes, weights=end - start, minlength=len(words))
    total = np.bincount(codes, weights=held, minlength=len(words))
    for code in np.argsort(-longest, kind="stable"):  # a caller is never shorter than what it calls
        if total[code] >= MOST_FRAC * left_ns and not words[code].startswith(("<built-in", "nn.Module")):
            best, left_ns = int(code), min(left_ns, int(total[code]))
    return best


def _sampled(run: Run, spans: Spans) -> Frame | None:
    """The function that was running in most samples, named by the line it was at most often."""
    samples: Rows = run.host_rows
    at = samples["at_ns"]
    inside = covered_ns(spans, at, at + 1) > 0
    told = [text for text in samples.words("frame").where(inside).to_list() if text is not None]
    if not told:
        return None
    functions = Counter(_LINE.sub("", text) for text in told)
    function, count = functions.most_common(1)[0]
    lines = Counter(text for text in told if _LINE.sub("", text) == function)
    return Frame(name=lines.most_common(1)[0][0], frac=count / len(told), by="sampled", samples=len(told))


def library_call(run: Run, spans: Spans) -> str | None:
    """What the user's line called in a library in at least half of the samples of that time; None where not told."""
    samples = run.host_rows
    at = samples["at_ns"]
    told = samples.words("called").where(covered_ns(spans, at, at + 1) > 0).to_list()
    if not told:
        return None
    name, count = Counter(told).most_common(1)[0]
    return name if 2 * count >= len(told) else None
