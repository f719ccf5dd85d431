"""The phases of a session, one letter for each point of a sparkline, with a legend."""

from __future__ import annotations

from gpulab.capture.plan import ProfilerPhase

# Letter: (text in the legend, mark in plain text).
_PHASES = {
    "o": ("waiting for the first step", "·"),
    "w": ("warming up, profiler off", "╌"),
    "b": ("between two recordings, profiler off", "╌"),
    "r": ("recording", "━"),
    "s": ("sensors only", "─"),
    "p": ("paused", "┈"),
    "v": ("virtual GPU", "═"),
}
_LETTERS = {
    ProfilerPhase.OPENING: "o",
    ProfilerPhase.WARMING: "w",
    ProfilerPhase.RECORDING: "r",
    ProfilerPhase.RESTING: "b",
    ProfilerPhase.DONE: "s",
}


def phase_letter(phase: str) -> str:
    """Return the letter of a phase, given its name in `Live.phase`."""
    if phase.startswith("paused"):
        return "p"
    if phase.startswith("virtual"):
        return "v"
    return next((symbol for name, symbol in _LETTERS.items() if name.value == phase), "s")


def phase_legend(letters: str) -> tuple[tuple[str, str], ...]:
    """Return the letters that occur, in order of appearance, each with its description."""
    return tuple((symbol, _PHASES[symbol][0]) for symbol in dict.fromkeys(letters))


def phase_marks(letters: str) -> str:
    """Return the phases as a row of line-drawing characters."""
    return "".join(_PHASES[symbol][1] for symbol in letters)
