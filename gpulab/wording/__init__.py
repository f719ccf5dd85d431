"""How numbers and foreign text become words: the one place where ns become ms, bytes GiB and fractions percentages."""

from gpulab.wording.durations import Scale, clock, duration, scale
from gpulab.wording.numbers import (
    UNKNOWN,
    count,
    metric,
    number,
    number_ranges,
    percent,
    plural,
    quantity,
    ratio,
    ratio_range,
    size,
)
from gpulab.wording.text import article, clean, clean_code, sentence, shorten

__all__ = [
    "UNKNOWN",
    "Scale",
    "article",
    "clean",
    "clean_code",
    "clock",
    "count",
    "duration",
    "metric",
    "number",
    "number_ranges",
    "percent",
    "plural",
    "quantity",
    "ratio",
    "ratio_range",
    "scale",
    "sentence",
    "shorten",
    "size",
]
