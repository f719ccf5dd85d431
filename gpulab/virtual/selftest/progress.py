"""Parse the output of the self-test program: one line when a part begins, one line at the end."""

from __future__ import annotations

from dataclasses import dataclass

MARK = "gpulab self-test "
BEGINS, FAILED, DONE = "begins: ", "failed: ", "done"
START = "importing PyTorch"


@dataclass(frozen=True)
class Progress:
    """Progress of the self-test, from its output."""

    part: str  # the last part that began
    failure: str | None  # the error in that part
    done: bool


def read_progress(output: str) -> Progress:
    """Parse the program's output, which may contain lines of other libraries."""
    part, failure, done = START, None, False
    for line in output.splitlines():
        _, mark, text = line.partition(MARK)
        if not mark:
            continue
        if text.startswith(BEGINS):
            part = text.removeprefix(BEGINS)
        elif text.startswith(FAILED):
            failure = text.removeprefix(FAILED)
        elif text == DONE:
            done = True
    return Progress(part, failure, done)
