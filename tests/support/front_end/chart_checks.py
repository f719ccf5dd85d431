"""What every chart must be: legible, inside its frame, nothing on top of other text, true in words; and a large run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from unittest import mock

import numpy as np

from gpulab.rows import TextColumn
from gpulab.run import Loader, Machine, Recording, Run, Source
from gpulab.tables import EVENTS, EventKind
from tests.support.runs.made_runs import GPUS

LEAST_PT, LEAST_CONTRAST = 7.5, 4.5
MOST_ROWS = 48
_ABSENT = re.compile(r"\b(nan|inf|none)\b|\d -\d", re.IGNORECASE)

HOSTILE = (
    "<script>alert(1)</script>",
    "void k<$a_{1}$, '\"&amp;>(float*)",
    "\u202eevil\u202c kernel",
    "x" * 10_000,
    "line\nbreak\ttab",
    "\u4e2d\u6587 kernel \U0001f600",
    "%s {0} \\frac{1}{2} $\\undefined$",
)


@dataclass(frozen=True)
class Drawn:
    """A text as it stands in a picture, in pixels."""

    words: str
    left: float
    bottom: float
    right: float
    top: float
    size_pt: float
    colour: tuple[float, float, float]

    def inside(self, width: int, height: int) -> bool:
        return min(self.left, self.bottom) > -1 and self.right < width + 1 and self.top < height + 1

    def on(self, other: Drawn) -> bool:
        across = min(self.right, other.right) - max(self.left, other.left)
        along = min(self.top, other.top) - max(self.bottom, other.bottom)
        return across > 1.5 and along > 1.5


def check(chart) -> None:
    """Everything that holds for every chart."""
    check_words(chart)
    check_picture(chart)


def check_words(chart) -> None:
    """The title, the text alternative and the table are there, name the source, and hold nothing unfinished."""
    assert chart.headline
    assert chart.headline in chart.alt
    assert chart.source
    assert chart.source in chart.alt
    assert "\n" not in chart.alt
    header, rows = chart.table.header, chart.table.rows
    assert len(rows) <= MOST_ROWS
    assert all(len(row.cells) == len(header) for row in rows)
    texts = [chart.headline, *(cell for row in rows for cell in row.cells), chart.alt]
    unfinished = [text for text in texts if _ABSENT.search(_without_names(text))]
    assert not unfinished, unfinished


def check_picture(chart) -> None:
    """Each text is inside, large enough, in contrast to what is under it, and on no other."""
    texts = drawn_texts(chart)
    width, height = chart.canvas.get_width_height()
    outside = [each for each in texts if not each.inside(width, height)]
    assert not outside, f"outside the figure of {width} x {height}: {outside}"
    small = [each for each in texts if each.size_pt < LEAST_PT - 1e-6]
    assert not small, f"too small: {small}"
    collided = [(one.words, other.words) for at, one in enumerate(texts) for other in texts[at + 1 :] if one.on(other)]
    assert not collided, f"texts on one another: {collided}"
    pale = [(each.words, round(ratio, 2)) for each, ratio in contrasts(chart, texts) if ratio < LEAST_CONTRAST]
    assert not pale, f"too little contrast: {pale}"


def drawn_texts(chart) -> list[Drawn]:
    """What matplotlib really draws, where; the mark across virtual pictures is left out."""
    from matplotlib.text import Text

    chart.canvas.draw()
    texts_drawn: list[Drawn] = []
    draw = Text.draw

    def noted(self, renderer, *args, **options):
        draw(self, renderer, *args, **options)
        if self.get_visible() and self.get_text().strip() and self.get_gid() != "mark":
            box = Text.get_window_extent(self, renderer)
            rgb = _rgb(self.get_color())
            texts_drawn.append(Drawn(self.get_text(), box.x0, box.y0, box.x1, box.y1, self.get_fontsize(), rgb))

    with mock.patch.object(Text, "draw", noted):
        chart.canvas.draw()
    return texts_drawn


def contrasts(chart, texts: list[Drawn]) -> list[tuple[Drawn, float]]:
    """Each text with its contrast to the middle colour of what is under it."""
    from matplotlib.text import Text

    chart.set_layout_engine("none")  # the texts keep their places when they go
    for text in chart.findobj(Text):
        if text.get_gid() != "mark":
            text.set_alpha(0)
    chart.canvas.draw()
    pixels = np.asarray(chart.canvas.buffer_rgba())[::-1, :, :3] / 255
    results = []
    for drawn_text in texts:
        rows = slice(max(0, int(drawn_text.bottom)), int(np.ceil(drawn_text.top)) + 1)
        columns = slice(max(0, int(drawn_text.left)), int(np.ceil(drawn_text.right)) + 1)
        under = np.median(pixels[rows, columns].reshape(-1, 3), axis=0)
        results.append((drawn_text, _contrast(drawn_text.colour, tuple(under))))
    return results


def _rgb(colour) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    return to_rgb(colour)


def _contrast(one, other) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(rgb) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def _without_names(text: str) -> str:
    """A sentence may say "none": what is unfinished stands among figures."""
    return re.sub(r"\b[Nn]one (of|is|was|to)\b|: none\b", "", text)


def crowded(events: int = 1_000_000, *, steps: int = 20, names: tuple[str, ...] = HOSTILE) -> Run:
    """A run of so many events: in each step operators that launch kernels, with a pause for data before them."""
    count = (events - steps) // 3
    step = np.arange(count) * steps // count
    place = np.arange(count) - np.searchsorted(step, np.arange(steps))[step]
    step_ns = 20_000 * (count // steps) + 60_000_000
    launch_ns = step * step_ns + 40_000_000 + place * 20_000
    opens = np.arange(steps) * step_ns
    nothing = np.full(count, -1, np.int64)
    event_names = (
        *names,
        *(f"aten::op_{number}" for number in range(150)),
        "cudaLaunchKernel",
        "ProfilerStep#0",
        "Memcpy HtoD (Pageable -> Device)",
    )
    spread = (place * 7 + step) % (len(event_names) - 3)
    copies = place % 50 == 0
    work = np.where(copies, len(event_names) - 1, spread)
    kinds = [
        np.full(count, int(EventKind.OP)),
        np.full(count, int(EventKind.LAUNCH)),
        np.where(copies, EventKind.MEMCPY, EventKind.KERNEL),
    ]
    kernel_ns = launch_ns + 9_000 + place % 997 * 40
    columns = {
        "kind": np.concatenate([*kinds, np.full(steps, int(EventKind.STEP))]),
        "name": np.concatenate([spread, spread * 0 + len(event_names) - 3, work, np.full(steps, len(event_names) - 2)]),
        "start_ns": np.concatenate([launch_ns, launch_ns + 3_000, kernel_ns, opens]),
        "dur_ns": np.concatenate(
            [nothing + 15_001, nothing + 5_001, 9_000 + place % 13 * 700, np.full(steps, step_ns)]
        ),
        "thread": np.concatenate([nothing + 1, nothing + 1, nothing, np.zeros(steps, np.int64)]),
        "device": np.concatenate([nothing, nothing, nothing + 1, np.full(steps, -1)]),
        "stream": np.concatenate([nothing, nothing, nothing + 8, np.full(steps, -1)]),
        "correlation": np.concatenate([nothing, np.arange(count), np.arange(count), np.full(steps, -1)]),
        "bytes": np.concatenate(
            [nothing, nothing, np.where(copies, 1000 + place % 5000 * 997, -1), np.full(steps, -1)]
        ),
    }
    order = np.lexsort((-columns["dur_ns"], columns["start_ns"]))
    names_of = TextColumn(columns.pop("name")[order].astype(np.int32), event_names)
    span_ns = int((columns["start_ns"] + columns["dur_ns"]).max())
    return Run(
        name="a million events",
        source=Source(how="recorded", device="Made GPU", date="2026-01-01"),
        machine=Machine(gpus=(GPUS["H100"],), cores_allowed=8.0),
        span_ns=span_ns,
        recording=Recording(windows_ns=((0, span_ns),)),
        loaders=(Loader(workers=0, batch_size=32),),
        threads=("main", "autograd"),
        event_rows=EVENTS.rows({"name": names_of, **{name: values[order] for name, values in columns.items()}}),
    )
