"""The style of all charts: colours, grid and sizes; matplotlib settings of the user are not changed."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import matplotlib as mpl

from gpulab.views.charts.drawing.text_layout import MISSING_GLYPH

# Text has a contrast of 4.5:1 on the background. Notebooks show the colours of DARK instead in dark themes.
BACKGROUND, TEXT_COLOUR, SOFT_COLOUR, GRID_COLOUR = "#FBFBFA", "#1F2328", "#59626B", "#DDE1E4"
DARK = {BACKGROUND: "#111111", TEXT_COLOUR: "#E6E8EA", SOFT_COLOUR: "#A6AEB6", GRID_COLOUR: "#34393E"}
Style = dict[str, Any]  # style keywords of matplotlib for a mark or text
TITLE_PT, TEXT_PT, SMALL_PT = 11.0, 9.0, 7.5  # SMALL_PT is the smallest text in a chart

_SETTINGS = {
    "font.size": TEXT_PT,
    "text.color": TEXT_COLOUR,
    "axes.edgecolor": GRID_COLOUR,
    "axes.facecolor": "none",  # transparent, so that background and watermark are visible
    "axes.labelcolor": SOFT_COLOUR,
    "axes.labelsize": 8.5,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID_COLOUR,
    "grid.linewidth": 0.7,
    "xtick.color": SOFT_COLOUR,
    "ytick.color": SOFT_COLOUR,
    "xtick.labelcolor": TEXT_COLOUR,
    "ytick.labelcolor": TEXT_COLOUR,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "hatch.linewidth": 0.8,
    "figure.constrained_layout.h_pad": 0.05,
    "figure.constrained_layout.w_pad": 0.09,
    "savefig.facecolor": BACKGROUND,
    "text.parse_math": False,  # dollar signs in names from a trace are not mathematics
    "text.usetex": False,
    "font.family": "DejaVu Sans",  # shipped with matplotlib: the same on all machines
    "axes.formatter.useoffset": False,
}
# Settings that a style sheet of the user may have changed: reset first, so that charts look the same everywhere.
_STYLE_PREFIXES = (
    *("axes.", "axes3d.", "boxplot.", "errorbar.", "figure.", "font.", "grid.", "hatch.", "hist.", "image.", "legend."),
    *("lines.", "markers.", "mathtext.", "patch.", "path.", "savefig.", "scatter.", "text.", "xtick.", "ytick."),
)
_NOT_STYLE = ("savefig.directory", "figure.max_open_warning", "figure.raise_window", "figure.hooks")


@cache
def _all_settings() -> dict[str, Any]:
    default: Any = mpl.rcParamsDefault  # typed by setting name, which is not known statically
    return {
        name: default[name] for name in default if name.startswith(_STYLE_PREFIXES) and name not in _NOT_STYLE
    } | _SETTINGS


@contextlib.contextmanager
def chart_style() -> Iterator[None]:
    """Apply gpulab's style while a chart is created or drawn; the user's settings are restored afterwards."""
    settings: Any = _all_settings()
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=MISSING_GLYPH)
        yield
