"""What gpulab itself was doing at each point of a sparkline: a letter a point, and words for each letter."""

from __future__ import annotations

from gpulab.capture.plan import Phase

# The letter, its words in the legend, and how plain text draws it.
_WORDS = {
    "o": ("before the first step", "·"),
    "w": ("warming up, profiler off", "╌"),
    "r": ("recording", "━"),
    "s": ("sensors only", "─"),
    "p": ("paused", "┈"),
    "v": ("virtual GPU", "═"),
}
_LETTERS = {Phase.OPENING: "o", Phase.WARMING: "w", Phase.RECORDING: "r", Phase.DONE: "s"}


def letter(phase: str) -> str:
    """The letter of a phase as a session names it."""
    if phase.startswith("paused"):
        return "p"
    if phase.startswith("virtual"):
        return "v"
    return next((own for known, own in _LETTERS.items() if known.value == phase), "s")


def legend(letters: str) -> tuple[tuple[str, str], ...]:
    """The letters that occur, in the order in which they came, with their words."""
    return tuple((own, _WORDS[own][0]) for own in dict.fromkeys(letters))


def drawn(letters: str) -> str:
    """The same as a row of characters."""
    return "".join(_WORDS[own][1] for own in letters)
