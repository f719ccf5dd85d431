"""The lines of the user's code that take the most time, as a table."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpulab.analysis.steps.sampled_lines import LineTime, sampled_lines
from gpulab.rules import Diagnosis
from gpulab.views.sheet.sheet import Row, Section, TableBlock
from gpulab.wording import percent

_MOST_ROWS = 6
_MOST_FUNCTIONS = 6  # of a line
_INSIDE = "in "  # before the name of a function that the called one calls
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
    rows = tuple(row for line in largest for row in _rows(line))
    caption = (
        f"Where the main thread was in {sampled.samples:,} samples of the loop, and the function that it called. On a "
        "GPU, the time of a line that waits for the GPU includes the kernels that it waits for."
    )
    functions = [row.cells[1] for row in rows if row.cells[1].startswith(_INSIDE)]
    if functions:
        caption += ' Rows with "in" are parts of the time of the line above them, by functions of libraries.'
    if any(" -> " in function for function in functions):
        caption += " A function A -> B is A, which spends its time in B."
    table = TableBlock(header=("", "function called", "share"), rows=rows, caption=caption, text_columns=2)
    return Section("Lines that take the most time", (table,), folded=True)


def _rows(line: LineTime) -> Iterator[Row]:
    """A line, and the functions of libraries in which it spends its time, unless they say the same."""
    call = _MODULES.sub("", line.call or "")
    yield Row((line.line, call, percent(line.frac)), kind="plain")
    if [function.name for function in line.inside] != [".".join(call.split(".")[-2:])]:
        for function in line.inside[:_MOST_FUNCTIONS]:
            yield Row(("", f"{_INSIDE}{function.name}", percent(function.frac)), kind="plain")
