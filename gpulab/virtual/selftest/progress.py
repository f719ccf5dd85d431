"""The lines that the self-test writes as it goes: one as each part begins, one at the end."""

from __future__ import annotations

from dataclasses import dataclass

MARK = "gpulab self-test "
BEGINS, FAILED, DONE = "begins: ", "failed: ", "done"
START = "importing PyTorch"


@dataclass(frozen=True)
class Progress:
    """How far the self-test came, by its output."""

    part: str  # the last one that began
    failure: str | None  # the error in it
    done: bool


def read_progress(output: str) -> Progress:
    """Parse the output of the program; other libraries may have written into it."""
    part, failure, done = START, None, False
    for line in output.splitlines():
        _, mark, words = line.partition(MARK)
        if not mark:
            continue
        if words.startswith(BEGINS):
            part = words.removeprefix(BEGINS)
        elif words.startswith(FAILED):
            failure = words.removeprefix(FAILED)
        elif words == DONE:
            done = True
    return Progress(part, failure, done)
