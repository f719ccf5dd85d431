"""What a view says, whatever form it takes: blocks of text, figures and pictures. Each form renders the same sheet."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.wording import percent


@dataclass(frozen=True)
class Line:
    """A sentence or two; `soft` ones are said quietly."""

    text: str
    soft: bool = False


@dataclass(frozen=True)
class Verdict(Line):
    """A sentence in which one word says how it turned out: at its beginning, or after a colon."""

    word: str = ""
    good: bool | None = None  # None where nothing was tried yet

    @property
    def around(self) -> tuple[str, str]:
        """The text before that word, and after it."""
        at = 0 if self.text.startswith(self.word) else self.text.index(f": {self.word}") + 2
        return self.text[:at], self.text[at + len(self.word) :]


@dataclass(frozen=True)
class Code:
    """Something to paste."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A prediction in words, and its shares of the step as it is, for a small bar."""

    text: str
    best_frac: float
    worst_frac: float
    floor_frac: float
    measured_frac: float | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A claim, what shows it, what to do, and what that is expected to give."""

    claim: str
    leading: bool  # the headline, not one of several
    evidence: tuple[str, ...] = ()
    fix: str = ""
    advice: str = ""
    expectation: Expectation | None = None
    notes: tuple[str, ...] = ()
    closing: str = ""  # what comes next, or how it turned out
    gist: str = ""  # what it gives, in a few words, beside the claim of one that is folded
    picture: Timeline | None = None  # what shows it


@dataclass(frozen=True)
class Facts:
    """Names and what there is to say about each."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Row:
    """One row of a table: a `group` row sums those under it, `total` all; `key` gives its colour."""

    cells: tuple[str, ...]
    key: str | None = None
    kind: str = "plain"  # "plain", "group" or "total"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under a header; all columns but the first `left` ones are numbers."""

    header: tuple[str, ...]
    rows: tuple[Row, ...]
    left: int = 1
    caption: str = ""


@dataclass(frozen=True)
class Segment:
    """A stretch of a bar."""

    key: str
    label: str
    frac: float


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Parts of a whole as a picture of what a table beside it says; `length` is its share of the widest bar."""

    title: str
    segments: tuple[Segment, ...]
    groups: tuple[Segment, ...] = ()
    length: float = 1.0
    name: str = ""  # shown beside the bar where several are compared


@dataclass(frozen=True)
class Mark:
    """A label at a place of a picture's width, 0-1, until where it may reach."""

    at: float
    until: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A picture over time: labelled lanes, steps above, an axis below; and the same in words."""

    svg: str
    lane_names: tuple[str, ...]
    lane_px: int
    steps: tuple[Mark, ...]
    ticks: tuple[Mark, ...]
    legend: tuple[tuple[str, str], ...]  # key, label
    alt: str
    shaded: str = ""  # what the shaded stretches are
    table: Table | None = None  # the same in numbers; None for a small one, which `alt` under it says whole
    place: str = ""  # names it, where a timeline to zoom into may come to stand in its place


@dataclass(frozen=True)
class Section:
    """A heading and what is under it; a `folded` one is read on demand."""

    title: str
    blocks: tuple[Block, ...]
    folded: bool = False


@dataclass(frozen=True)
class Sheet:
    """All of a view, under one title."""

    title: str
    blocks: tuple[Block, ...]


Block = Line | Code | Answer | Facts | Table | Bar | Timeline | Section


def bar_words(bar: Bar) -> tuple[str, ...]:
    """What a bar says that the table beside it does not: nothing, unless it is one of several."""
    shares = ", ".join(f"{group.label} {percent(group.frac, 1)}" for group in bar.groups)
    return (f"{bar.name}; {shares}",) if bar.name else ()
