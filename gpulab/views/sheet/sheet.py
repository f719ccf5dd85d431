"""The content of a view, independent of its form: blocks of text, numbers and pictures.

Text, HTML and Markdown are rendered from the same sheet.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.wording import percent


@dataclass(frozen=True)
class Line:
    """A sentence or two; `soft` lines are less prominent."""

    text: str
    soft: bool = False


@dataclass(frozen=True)
class Verdict(Line):
    """A sentence with a one-word result, at its beginning or after a colon."""

    result: str = ""
    good: bool | None = None  # None: not tried yet

    @property
    def text_around_result(self) -> tuple[str, str]:
        """The text before and after the result word."""
        start = 0 if self.text.startswith(self.result) else self.text.index(f": {self.result}") + 2
        return self.text[:start], self.text[start + len(self.result) :]


@dataclass(frozen=True)
class Code:
    """Code to paste."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """A prediction as fractions of the present step, for a small bar."""

    best_frac: float
    worst_frac: float
    floor_frac: float
    measured_frac: float | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A claim with its evidence and fix; `facts` and `notes` are pairs of name and value, notes less prominent."""

    claim: str
    leading: bool  # the headline, not one of several
    evidence: tuple[str, ...] = ()
    fix: str = ""
    advice: str = ""
    facts: tuple[tuple[str, str], ...] = ()  # the predicted step time, its bound, the next bottleneck
    expectation: Expectation | None = None  # drawn below the facts
    notes: tuple[tuple[str, str], ...] = ()
    gist: str = ""  # the gain in a few words, after the claim of a folded answer
    picture: Timeline | None = None  # of the evidence


@dataclass(frozen=True)
class Facts:
    """Pairs of name and value."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Row:
    """One row of a table: `group` sums the rows below it, `total` all rows; `key` selects the colour."""

    cells: tuple[str, ...]
    key: str | None = None
    kind: str = "plain"  # "plain", "group" or "total"
    shades: tuple[float, ...] = ()  # of the cells after the first: how strong their background is in HTML, 0-1


@dataclass(frozen=True, kw_only=True)
class TableBlock:
    """Rows under a header; the first `left` columns are text, the others numbers."""

    header: tuple[str, ...]
    rows: tuple[Row, ...]
    text_columns: int = 1
    caption: str = ""


@dataclass(frozen=True)
class Segment:
    """One segment of a bar."""

    key: str
    label: str
    frac: float


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Parts of a whole as a bar; `length` is its width relative to the widest bar."""

    title: str
    segments: tuple[Segment, ...]
    groups: tuple[Segment, ...] = ()
    length: float = 1.0
    name: str = ""  # shown above the bar if several are compared


@dataclass(frozen=True)
class Mark:
    """A label along the width of a picture, from `at` to `until`, both 0-1."""

    start: float
    end: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """A picture over time: labelled lanes, steps above, an axis below; with a description in text."""

    svg: str
    lane_names: tuple[str, ...]
    lane_px: int
    steps: tuple[Mark, ...]
    ticks: tuple[Mark, ...]
    legend: tuple[tuple[str, str], ...]  # key, label
    alt: str
    shaded: str = ""  # legend of the shading
    table: TableBlock | None = None  # the same as numbers; None for a small picture that `alt` describes completely
    element_key: str = ""  # key of the element that a zoomable timeline may replace


@dataclass(frozen=True)
class Section:
    """A heading and its blocks; collapsed at first if `folded`."""

    title: str
    blocks: tuple[Block, ...]
    folded: bool = False


@dataclass(frozen=True)
class Sheet:
    """All blocks of a view, and its title."""

    title: str
    blocks: tuple[Block, ...]


Block = Line | Code | Answer | Facts | TableBlock | Bar | Timeline | Section


def bar_text(bar: Bar) -> tuple[str, ...]:
    """Return a bar as text if it is one of several; nothing otherwise, because a table has the same numbers."""
    shares = ", ".join(f"{group.label} {percent(group.frac, 1)}" for group in bar.groups)
    return (f"{bar.name}; {shares}",) if bar.name else ()
