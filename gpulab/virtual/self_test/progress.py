"""Parse the output of the self-test program: one line when a part begins, one line at the end."""

from __future__ import annotations

from dataclasses import dataclass

MARK = "gpulab self-test "
PART_PREFIX, FAILURE_PREFIX, DONE = "begins: ", "failed: ", "done"
FIRST_PART = "importing PyTorch"


@dataclass(frozen=True)
class SelftestProgress:
    """Progress of the self-test, from its output."""

    part: str  # the last part that began
    failure: str | None  # the error in that part
    done: bool


def read_progress(output: str) -> SelftestProgress:
    """Parse the program's output, which may contain lines of other libraries."""
    part, failure, done = FIRST_PART, None, False
    for line in output.splitlines():
        _, mark, text = line.partition(MARK)
        if not mark:
            continue
        if text.startswith(PART_PREFIX):
            part = text.removeprefix(PART_PREFIX)
        elif text.startswith(FAILURE_PREFIX):
            failure = text.removeprefix(FAILURE_PREFIX)
        elif text == DONE:
            done = True
    return SelftestProgress(part, failure, done)
