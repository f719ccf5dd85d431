"""How every chart is dressed: paper, ink, grid and sizes; no setting of matplotlib that a user made is touched."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import matplotlib as mpl

from gpulab.views.charts.drawing.lettering import MISSING

# A page of its own colour, so that a chart reads the same in a light and in a dark notebook; text has 4.5:1 on it.
PAPER, INK, SOFT, GRID = "#FBFBFA", "#1F2328", "#59626B", "#DDE1E4"
Dress = dict[str, Any]  # how one mark or text looks, as matplotlib takes it
TITLE_PT, TEXT_PT, SMALL_PT = 11.0, 9.0, 7.5  # nothing in a chart is smaller than the last

_DRESS = {
    "font.size": TEXT_PT,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",  # the paper shows through, and with it the mark of what is virtual
    "axes.labelcolor": SOFT,
    "axes.labelsize": 8.5,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "hatch.linewidth": 0.8,
    "figure.constrained_layout.h_pad": 0.05,
    "figure.constrained_layout.w_pad": 0.09,
    "savefig.facecolor": PAPER,
    "text.parse_math": False,  # names from a trace may hold dollar signs, and none of them means mathematics
    "text.usetex": False,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture everywhere
    "axes.formatter.useoffset": False,
}
# What a style sheet of the user's may have changed: set back first, so that the picture is the same everywhere.
_LOOKS = (
    *("axes.", "axes3d.", "boxplot.", "errorbar.", "figure.", "font.", "grid.", "hatch.", "hist.", "image.", "legend."),
    *("lines.", "markers.", "mathtext.", "patch.", "path.", "savefig.", "scatter.", "text.", "xtick.", "ytick."),
)
_NOT_LOOKS = ("savefig.directory", "figure.max_open_warning", "figure.raise_window", "figure.hooks")


@cache
def _house() -> dict[str, Any]:
    default: Any = mpl.rcParamsDefault  # typed by the name of each setting, which is more than is known here
    return {name: default[name] for name in default if name.startswith(_LOOKS) and name not in _NOT_LOOKS} | _DRESS


@contextlib.contextmanager
def dressed() -> Iterator[None]:
    """The house's style while a chart is made or drawn; whatever the user has set is back afterwards."""
    house: Any = _house()
    with mpl.rc_context(house), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=MISSING)
        yield
