"""Chart: a matplotlib Figure with a result as title, a source line, a description and a table."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gpulab.run import Run
from gpulab.views.charts.drawing.shades import dark_colours
from gpulab.views.charts.drawing.style import BACKGROUND, SMALL_PT, SOFT_COLOUR, TEXT_COLOUR, TITLE_PT, chart_style
from gpulab.views.charts.drawing.text_layout import LEFT_FRAC, break_lines, file_format, text_width_in
from gpulab.views.charts.drawing.themed_svg import themed_svg
from gpulab.views.sheet.html_table import table_html
from gpulab.views.sheet.sheet import TableBlock
from gpulab.wording import clean, sentence, shorten

WIDTH_IN, HEIGHT_IN, DPI = 7.2, 3.6, 120
MAX_TITLE, MAX_ALT, MAX_SOURCE, MAX_NAME, MAX_DEVICE = 200, 1600, 300, 60, 80
MAX_SVG_BYTES = 50_000  # a chart of more marks is shown as a PNG, which is smaller
_WATERMARK_FRAC = 0.85  # its largest width, as a share of the chart's
_ALPHA = 0.12  # of the watermark on charts of a virtual GPU: visible, but not obstructive
_TITLE_KEYS = {"png": ("Title", "Description"), "svg": ("Title", "Description"), "pdf": ("Title", "Subject")}


class Chart(Figure):
    """A figure with `answer` (its title), `alt` (a description), `table` (its numbers) and `source`.

    It does not use pyplot: open figures of the user are not affected, and nothing has to be closed. Save it like any
    figure: `chart.savefig("steps.png")`.
    """

    def __init__(self, answer: str, *, source: str, alt: str, table: TableBlock, height_in: float = HEIGHT_IN) -> None:
        with chart_style():
            super().__init__(figsize=(WIDTH_IN, height_in), dpi=DPI, layout="constrained", facecolor=BACKGROUND)
            FigureCanvasAgg(self)
            self.headline = clean(answer, MAX_TITLE).strip().removesuffix(".")
            self.source, self.table = clean(source, MAX_SOURCE), table
            self.alt = f"{self.headline}. {sentence(clean(alt, MAX_ALT))} {sentence(f'Source: {self.source}')}"
            self._add_frame()

    def _add_frame(self) -> None:
        """Add the title and the source line, and a watermark if the source is a virtual GPU."""
        title = break_lines(WIDTH_IN, self.headline, TITLE_PT, weight="bold")
        position: dict[str, Any] = {"x": LEFT_FRAC, "ha": "left"}
        self._title = self.suptitle(
            title, **position, fontsize=TITLE_PT, fontweight="bold", color=TEXT_COLOUR, linespacing=1.25
        )
        virtual = _virtual(self.source)
        source_line = break_lines(WIDTH_IN, f"Source: {self.source}", SMALL_PT, weight="bold" if virtual else "normal")
        self._source_line = self.supxlabel(
            source_line, **position, fontsize=SMALL_PT, color=SOFT_COLOUR, fontweight="bold" if virtual else "normal"
        )
        if virtual:
            # On top of the plot, so that bars do not cover it; faint, so that it covers nothing.
            text = self.text(0.54, 0.5, virtual, ha="center", va="center", rotation=12, gid="mark")
            fitting_pt = _WATERMARK_FRAC * WIDTH_IN / text_width_in(virtual, 1.0, "bold")
            size_pt = min(28.0, 9 * self.get_figheight(), fitting_pt)
            text.set(fontsize=size_pt, fontweight="bold", color=TEXT_COLOUR, alpha=_ALPHA)
            text.set_in_layout(False)

    def place_frame(self, *, top_in: float, bottom_in: float) -> None:
        """Move title and source line, for a figure without automatic layout."""
        height_in = self.get_figheight()
        for text in (self._title, self._source_line):
            text.set_y(1 - top_in / height_in if text is self._title else bottom_in / height_in)

    def __repr__(self) -> str:
        return self.alt

    def __str__(self) -> str:
        return self.alt

    def draw(self, renderer: Any) -> None:
        """Draw in gpulab's style, because matplotlib creates ticks only when it draws."""
        with chart_style():
            super().draw(renderer)

    def savefig(self, fname: Any, **options: Any) -> None:
        """Save the figure, with title and description as metadata if the format supports them."""
        title, description = _TITLE_KEYS.get(file_format(fname, options.get("format")), ("", ""))
        metadata = {title: self.headline, description: self.alt} if title else {}
        if metadata or options.get("metadata"):
            options["metadata"] = {**metadata, **(options.get("metadata") or {})}
        with chart_style():
            super().savefig(fname, **options)

    def png(self) -> bytes:
        """Return the chart as PNG."""
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()

    def svg(self) -> str:
        """Return the chart as SVG that is light or dark like the page on which it is the source of an <img>."""
        file = io.BytesIO()
        with mpl.rc_context({"svg.fonttype": "none"}), chart_style():
            super().savefig(file, format="svg", metadata={"Date": None})
        return themed_svg(file.getvalue().decode(), dark_colours())

    def _image_source(self) -> str:
        drawing = self.svg().encode()
        small = len(drawing) <= MAX_SVG_BYTES
        kind, data = ("svg+xml", drawing) if small else ("png", self.png())
        return f"data:image/{kind};base64,{b64encode(data).decode()}"

    def _repr_html_(self) -> str:
        alt = escape(self.alt)
        table = table_html(self.table) if self.table.rows else ""
        return (
            f'<div class="mathjax_ignore" role="group" aria-label="gpulab chart" style="max-width:760px">'
            f'<img src="{self._image_source()}" alt="{alt}" '
            'style="display:block;width:100%;height:auto;border-radius:6px">'
            '<details style="margin:6px 0"><summary style="cursor:pointer;font-size:.88em">As text and table</summary>'
            f'<div style="padding:6px 0 0 16px"><div style="margin:0 0 8px">{alt}</div>{table}</div></details></div>'
        )

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


def single_plot(
    answer: str,
    draw: Callable[[Axes], None],
    *,
    source: str | Run | Sequence[Run],
    alt: str,
    table: TableBlock,
    height_in: float = HEIGHT_IN,
) -> Chart:
    """Return a chart with one plot; `draw` receives its axes. `source`: text, or the runs to name as the source."""
    return stacked_plots(
        answer, lambda axes: draw(axes[0]), 1, source=source, alt=alt, table=table, height_in=height_in
    )


def stacked_plots(
    answer: str,
    draw: Callable[[Sequence[Axes]], None],
    count: int,
    *,
    source: str | Run | Sequence[Run],
    alt: str,
    table: TableBlock,
    height_in: float = HEIGHT_IN,
    heights: Sequence[float] | None = None,
) -> Chart:
    """Return a chart with several plots, one below the other, that share the x axis."""
    with chart_style():
        source_text = source if isinstance(source, str) else combined_source(source)
        figure = Chart(answer, source=source_text, alt=alt, table=table, height_in=height_in)
        grid = figure.subplots(count, 1, sharex=True, squeeze=False, height_ratios=heights)
        draw(list(grid[:, 0]))
    return figure


def combined_source(runs: Run | Sequence[Run]) -> str:
    """Return the source of each run as text; only once if all runs have the same source."""
    all_runs = (runs,) if isinstance(runs, Run) else tuple(runs)
    names = [clean(run.name, MAX_NAME) for run in all_runs]
    texts = [clean(shorten(str(run.source), MAX_DEVICE + 40), MAX_DEVICE + 40) for run in all_runs]
    if len(set(texts)) == 1:
        run_names = f"run {names[0]}" if len(names) == 1 else f"runs {', '.join(names)}"
        return f"{texts[0]}; {run_names}"
    return "; ".join(f"{name}: {source}" for name, source in zip(names, texts, strict=True))


def missing_data_chart(run: Run | Sequence[Run], subject: str, why: str, fix: str = "") -> Chart:
    """Return a chart that names the missing data, why, and how to record it, in place of an empty frame or zeros."""
    alt = " ".join(filter(None, (sentence(why), sentence(fix))))

    def draw(axes: Axes) -> None:
        axes.set_axis_off()
        lines = "\n".join(break_lines(WIDTH_IN, text, 9.5, 0.92) for text in (sentence(why), sentence(fix)) if text)
        axes.text(0.0, 0.55, lines, ha="left", va="center", color=SOFT_COLOUR, fontsize=9.5, linespacing=1.45)

    table = TableBlock(header=("", ""), rows=())
    return single_plot(f"{subject}: not measured", draw, source=run, alt=alt, table=table, height_in=1.7)


def _virtual(source: str) -> str:
    """Return the watermark for a source that is a virtual GPU; "" for any other."""
    parts = [part.partition("virtual ")[2] for part in source.split("; ") if "virtual " in part and "estimated" in part]
    if not parts:
        return ""
    first = parts[0].partition(", estimated")[0]
    return f"virtual {shorten(first, 24)}, estimated" if len(set(parts)) == 1 else "virtual, estimated"
