"""One colour for each part of a step, the same in every bar, table and timeline.

Chosen from and around the Okabe-Ito set: work is blue and green, calling operators is one family of yellows and
browns, each other cause of idle time has a hue of its own. Every colour has about 3:1 or more against the page of
JupyterLab's light and dark themes. Thirteen colours cannot all be told apart by everyone, so each is also named
where it is used.
"""

from __future__ import annotations

_BY_KEY = {
    "matmul": "#0072B2",
    "compute": "#0072B2",
    "kernels": "#4E9DDA",
    "communication": "#5048B8",
    "copies": "#009E73",
    "loader": "#C84B00",
    "alloc": "#84543B",
    "sync": "#CE5F9A",
    "copy_call": "#3F7F5F",
    "launch": "#97742A",
    "runtime": "#8A8250",
    "dispatch": "#C99400",
    "glue": "#A39B3A",
    "python": "#94408A",
    # Between pieces of work, on a critical path only.
    "latency": "#6C7F95",
    "turn": "#7D7D7D",
    "wait": "#A8627F",
    "queue": "#5E7480",
}
NEUTRAL = "#8A8A8A"  # what has no name of its own: the rest, the unrecorded
RULE = "rgba(128,128,128,.35)"  # lines, on any page
WASH = "rgba(128,128,128,.12)"  # a quiet background, on any page
ACCENT, ACCENT_PALE = "#0072B2", "#6FA8CE"  # what is predicted: for sure, and perhaps
MEASURED = "#009E73"


def colour(key: str) -> str:
    """The colour of a part of the ledger."""
    return _BY_KEY.get(key, NEUTRAL)
