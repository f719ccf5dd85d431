"""Numbers as words: the only place where ns become ms, bytes become GiB, and fractions become percentages."""

from __future__ import annotations


def number_ranges(numbers: list[int]) -> str:
    """Sorted integers with runs joined: 0, 1, 2, 5 is "0-2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, ends)) for ends in runs)
