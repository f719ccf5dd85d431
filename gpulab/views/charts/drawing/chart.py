"""Chart: a matplotlib Figure that states its answer, names its source, and can be read without being seen."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gpulab.run import Run
from gpulab.views.charts.drawing.lettering import LEFT_FRAC, broken, extension
from gpulab.views.charts.drawing.style import INK, PAPER, SMALL_PT, SOFT, TITLE_PT, dressed
from gpulab.views.sheet.html import table_html
from gpulab.views.sheet.sheet import Table
from gpulab.wording import clean, sentence, shorten

WIDTH_IN, HEIGHT_IN, DPI = 7.2, 3.6, 120
MOST_TITLE, MOST_ALT, MOST_SOURCE, MOST_NAME, MOST_DEVICE = 200, 1600, 300, 60, 80
_ALPHA = 0.12  # of the mark across a virtual GPU's picture: seen, and in nobody's way
_TITLE_KEYS = {"png": ("Title", "Description"), "svg": ("Title", "Description"), "pdf": ("Title", "Subject")}


class Chart(Figure):
    """One picture. `answer` is its title, `alt` says it in words, `table` holds its numbers, `source` says whence.

    It never touches pyplot: the figures that a user has open stay theirs, and nothing has to be closed. Save it as any
    figure, `chart.savefig("steps.png")`.
    """

    def __init__(self, answer: str, *, source: str, alt: str, table: Table, height_in: float = HEIGHT_IN) -> None:
        with dressed():
            super().__init__(figsize=(WIDTH_IN, height_in), dpi=DPI, layout="constrained", facecolor=PAPER)
            FigureCanvasAgg(self)
            self.answer = clean(answer, MOST_TITLE).strip().removesuffix(".")
            self.source, self.table = clean(source, MOST_SOURCE), table
            self.alt = f"{self.answer}. {sentence(clean(alt, MOST_ALT))} {sentence(f'Source: {self.source}')}"
            self._framed()

    def _framed(self) -> None:
        """The title, the source line, and across the picture of what is virtual that it is."""
        title = broken(WIDTH_IN, self.answer, TITLE_PT, weight="bold")
        place: dict[str, Any] = {"x": LEFT_FRAC, "ha": "left"}
        self._title = self.suptitle(title, **place, fontsize=TITLE_PT, fontweight="bold", color=INK, linespacing=1.25)
        virtual = _virtual(self.source)
        below = broken(WIDTH_IN, f"Source: {self.source}", SMALL_PT, weight="bold" if virtual else "normal")
        self._below = self.supxlabel(
            below, **place, fontsize=SMALL_PT, color=SOFT, fontweight="bold" if virtual else "normal"
        )
        if virtual:
            # Over what is drawn, so that no bar hides it, and too faint to hide anything itself.
            text = self.text(0.54, 0.5, virtual, ha="center", va="center", rotation=12, gid="mark")
            text.set(fontsize=min(28.0, 9 * self.get_figheight()), fontweight="bold", color=INK, alpha=_ALPHA)
            text.set_in_layout(False)

    def place_frame(self, *, top_in: float, bottom_in: float) -> None:
        """Put title and source line where one's own arrangement has room for them."""
        tall = self.get_figheight()
        for text in (self._title, self._below):
            text.set_y(1 - top_in / tall if text is self._title else bottom_in / tall)

    def __repr__(self) -> str:
        return self.alt

    def __str__(self) -> str:
        return self.alt

    def draw(self, renderer: Any) -> None:
        """As Figure.draw, in the house's style: matplotlib makes ticks only now."""
        with dressed():
            super().draw(renderer)

    def savefig(self, fname: Any, **options: Any) -> None:
        """As Figure.savefig; the file says in words what it shows, where its format can."""
        title, words = _TITLE_KEYS.get(extension(fname, options.get("format")), ("", ""))
        told = {title: self.answer, words: self.alt} if title else {}
        if told or options.get("metadata"):
            options["metadata"] = {**told, **(options.get("metadata") or {})}
        with dressed():
            super().savefig(fname, **options)

    def png(self) -> bytes:
        """The picture as PNG."""
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()

    def _repr_html_(self) -> str:
        data, words = b64encode(self.png()).decode(), escape(self.alt)
        table = table_html(self.table) if self.table.rows else ""
        return (
            f'<div role="group" style="max-width:760px"><img src="data:image/png;base64,{data}" alt="{words}" '
            'style="display:block;width:100%;height:auto;border-radius:6px">'
            '<details style="margin:6px 0"><summary style="cursor:pointer;font-size:.88em">The same in words</summary>'
            f'<div style="padding:6px 0 0 16px"><div style="margin:0 0 8px">{words}</div>{table}</div></details></div>'
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


def chart(
    answer: str,
    draw: Callable[[Axes], None],
    *,
    source: str | Run | Sequence[Run],
    alt: str,
    table: Table,
    height_in: float = HEIGHT_IN,
) -> Chart:
    """A chart of one plot: `draw` is given its axes, in the house's dress. `source`: best the runs themselves."""
    return panels(answer, lambda axes: draw(axes[0]), 1, source=source, alt=alt, table=table, height_in=height_in)


def panels(
    answer: str,
    draw: Callable[[Sequence[Axes]], None],
    count: int,
    *,
    source: str | Run | Sequence[Run],
    alt: str,
    table: Table,
    height_in: float = HEIGHT_IN,
    heights: Sequence[float] | None = None,
) -> Chart:
    """A chart of several plots, one below the other on one x axis."""
    with dressed():
        told = source if isinstance(source, str) else sources(source)
        made = Chart(answer, source=told, alt=alt, table=table, height_in=height_in)
        grid = made.subplots(count, 1, sharex=True, squeeze=False, height_ratios=heights)
        draw(list(grid[:, 0]))
    return made


def sources(runs: Run | Sequence[Run]) -> str:
    """Where the numbers of some runs come from; once, where it is the same for all."""
    several = (runs,) if isinstance(runs, Run) else tuple(runs)
    names = [clean(run.name, MOST_NAME) for run in several]
    whence = [clean(shorten(str(run.source), MOST_DEVICE + 40), MOST_DEVICE + 40) for run in several]
    if len(set(whence)) == 1:
        called = f"run {names[0]}" if len(names) == 1 else f"runs {', '.join(names)}"
        return f"{whence[0]}; {called}"
    return "; ".join(f"{name}: {source}" for name, source in zip(names, whence, strict=True))


def nothing_to_draw(run: Run | Sequence[Run], what: str, why: str, fix: str = "") -> Chart:
    """A chart that says what is missing, why, and how to have it: never an empty frame, never a zero."""
    words = " ".join(filter(None, (sentence(why), sentence(fix))))

    def draw(axes: Axes) -> None:
        axes.set_axis_off()
        told = "\n".join(broken(WIDTH_IN, each, 9.5, 0.92) for each in (sentence(why), sentence(fix)) if each)
        axes.text(0.0, 0.55, told, ha="left", va="center", color=SOFT, fontsize=9.5, linespacing=1.45)

    table = Table(header=("", ""), rows=())
    return chart(f"{what}: not measured", draw, source=run, alt=words, table=table, height_in=1.7)


def _virtual(source: str) -> str:
    """The mark that a picture of what a virtual GPU did carries; nothing for any other."""
    parts = [part.partition("virtual ")[2] for part in source.split("; ") if "virtual " in part and "estimated" in part]
    if not parts:
        return ""
    first = parts[0].partition(", estimated")[0]
    return f"virtual {shorten(first, 24)}, estimated" if len(set(parts)) == 1 else "virtual, estimated"
