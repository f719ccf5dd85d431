"""Find the user's line that ran while PyTorch did not, from recorded or sampled Python frames."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from gpulab.intervals import Spans, covered_ns, subtract
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind

_LINE = re.compile(r"\d+\)?$")  # the line number at the end of "function (file.py:12)" or "cell line 12"
_CELL = re.compile(r"(?:.*ipykernel_\d+[/\\]\d+\.py|<ipython-input-[^>]*>)\((\d+)\): (.*)")  # as IPython names cells
# A frame of a profiler, such as "torch/profiler/profiler.py(12): start": if no deeper frame has most of the time, it is
# the profiler's own, and the callers of that frame are not its cause either.
_PROFILER = re.compile(r"profiler|[/\\]profil(?:e|ing)[/\\.]")
# gpulab's own work in the user's thread: every call of it passes through this function of capture.protection.guard.
_GUARDED = re.compile(r"(?:^|[/\\])gpulab[/\\]capture[/\\]protection[/\\]guard\.py\(\d+\): call$")
KNOWN_FRAC = 0.5  # a frame that accounts for this much of the time is named as the cause
_MIN_SAMPLES = 5  # a thread is sampled when it releases the GIL, so a few samples may all show the same line
DESCEND_FRAC = 0.8  # descend into a frame with at least this share of its caller's time
LOOP_FRAC = 0.5  # the same if the caller contains the whole loop


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A Python frame, its share of the examined time, and the source of that share."""

    name: str
    frac: float  # 0-1
    source: str  # "recorded" (with_stack) or "sampled"
    samples: int | None = None  # number of samples behind a sampled share

    @property
    def is_known(self) -> bool:
        """Whether there is enough evidence to name the frame as the code that ran."""
        return self.frac >= KNOWN_FRAC and (self.samples or _MIN_SAMPLES) >= _MIN_SAMPLES


def deepest_frame(run: Run, spans: Spans) -> Frame | None:
    """Return the deepest frame that covers most of `spans`; None without recorded frames and samples."""
    if not spans.total_ns:
        return None
    return _recorded(run, spans) or _sampled(run, spans)


def own_spans(run: Run) -> Spans:
    """Return when gpulab itself ran in the recorded thread; known if Python frames were recorded, else empty."""
    events = run.event_rows
    is_own = events.is_kind(EventKind.PYTHON) & (events["thread"] == run.main_thread)
    return events.select(np.flatnonzero(is_own & events.matching(lambda name: bool(_GUARDED.search(name))))).spans()


def _recorded(run: Run, spans: Spans) -> Frame | None:
    events = run.event_rows
    spans = subtract(spans, own_spans(run))
    rows = np.flatnonzero(events.is_kind(EventKind.PYTHON) & (events["thread"] == run.main_thread))
    start = events["start_ns"][rows]
    end = start + events["dur_ns"][rows]
    covered = covered_ns(spans, start, end) if len(rows) and spans.total_ns else np.zeros_like(start)
    nonzero = covered > 0
    if not nonzero.any():
        return None
    names, covered = events.text("name").select(rows[nonzero]), covered[nonzero]
    start, end = start[nonzero], end[nonzero]
    code = _descend(names.codes, start, end, covered, spans, names.vocabulary)
    if code is None or _PROFILER.search(names.vocabulary[code]):
        return None
    rows = names.codes == code
    return Frame(
        name=_display_name(names.vocabulary[code]),
        frac=min(1.0, covered[rows].sum() / spans.total_ns),
        source="recorded",
    )


def _display_name(name: str) -> str:
    """Return "cell line 12" for a notebook cell; the name in the trace for any other frame."""
    cell = _CELL.fullmatch(name)
    if cell is None:
        return name
    line, function = cell.groups()
    return f"cell line {line}" if function == "<module>" else f"{function} (cell line {line})"


def _descend(
    codes: np.ndarray, start: np.ndarray, end: np.ndarray, covered: np.ndarray, spans: Spans, names: tuple[str, ...]
) -> int | None:
    """Descend from the longest frames to shorter ones while one has most of its caller's time.

    From a frame that contains the whole loop, descend into one that has half of the time: the loop itself is no cause.
    """
    deepest, left_ns, frac = None, spans.total_ns, DESCEND_FRAC
    longest = np.bincount(codes, weights=end - start, minlength=len(names))
    total = np.bincount(codes, weights=covered, minlength=len(names))
    first, last = np.full(len(names), np.iinfo(np.int64).max), np.zeros(len(names), np.int64)
    np.minimum.at(first, codes, start)
    np.maximum.at(last, codes, end)
    is_loop = (
        (first <= spans.start_ns[0]) & (last >= spans.end_ns[-1]) & (np.bincount(codes, minlength=len(names)) == 1)
    )
    for code in np.argsort(-longest, kind="stable"):  # a caller is never shorter than its callees
        if total[code] >= frac * left_ns and not names[code].startswith(("<built-in", "nn.Module")):
            deepest, left_ns = int(code), min(left_ns, int(total[code]))
            frac = LOOP_FRAC if is_loop[code] else DESCEND_FRAC
    return deepest


def _sampled(run: Run, spans: Spans) -> Frame | None:
    """Return the function in most samples, named by its most frequent line."""
    samples: Rows = run.host_rows
    at = samples["at_ns"]
    inside = covered_ns(spans, at, at + 1) > 0
    lines = [text for text in samples.text("frame").select(inside).to_list() if text is not None]
    if not lines:
        return None
    functions = Counter(_LINE.sub("", text) for text in lines)
    function, count = functions.most_common(1)[0]
    line_counts = Counter(text for text in lines if _LINE.sub("", text) == function)
    return Frame(name=line_counts.most_common(1)[0][0], frac=count / len(lines), source="sampled", samples=len(lines))


def library_call(run: Run, spans: Spans) -> str | None:
    """Return the library function called by the user's line in at least half of these samples, else None."""
    samples = run.host_rows
    at = samples["at_ns"]
    calls = samples.text("called").select(covered_ns(spans, at, at + 1) > 0).to_list()
    if not calls:
        return None
    name, count = Counter(calls).most_common(1)[0]
    return name if 2 * count >= len(calls) else None
