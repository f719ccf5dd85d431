"""The lines of the user's code that take the most time, as a table."""

from __future__ import annotations

import re

from gpulab.analysis.steps.sampled_lines import sampled_lines
from gpulab.rules import Diagnosis
from gpulab.views.sheet.sheet import Row, Section, TableBlock
from gpulab.wording import percent

_MOST_ROWS = 6
_MIN_FRAC = 0.03
_MODULES = re.compile(r"^(?:__main__\.|torch\.(?:.*\.)?(?=[^.]+\.[^.]+$))")  # "torch._tensor.Tensor.backward"


def line_section(diagnosis: Diagnosis) -> Section | None:
    """Return the table; None with few samples, or without a loop."""
    if diagnosis.steps.detected_by == "whole run":
        return None
    sampled = sampled_lines(diagnosis.run, diagnosis.steps)
    largest = [line for line in sampled.lines[:_MOST_ROWS] if line.frac >= _MIN_FRAC] if sampled else []
    if sampled is None or not largest:
        return None
    rows = tuple(
        Row((line.line, _MODULES.sub("", line.call or ""), percent(line.frac)), kind="plain") for line in largest
    )
    caption = (
        f"Where the main thread was in {sampled.samples:,} samples of the loop, and the function that it called. On a "
        "GPU, the time of a line that waits for the GPU includes the kernels that it waits for."
    )
    table = TableBlock(header=("", "function called", "share"), rows=rows, caption=caption, text_columns=2)
    return Section("Lines that take the most time", (table,), folded=True)
