"""One colour for each part of a step, the same in every bar, table and timeline.

The colours are from and around the Okabe-Ito set: device work is blue and green, operator dispatch is a family of
yellows and browns, every other cause of idle time has a separate hue. Every colour has a contrast of at least 3:1 on a
white page, on JupyterLab's dark page and on the background of charts. Neighbouring parts of the ledger differ by at
least 12 (CIEDE2000), second neighbours by 8 and any two parts by 4, with normal vision and with protanopia,
deuteranopia or tritanopia. Thirteen colours cannot be distinguished at a glance, so each is also labelled. What is no
part of a step, such as a prediction or a verdict, has colours of its own: a colour has one meaning.
"""

from __future__ import annotations

_BY_KEY = {
    "matmul": "#0072B2",
    "compute": "#0072B2",
    "kernels": "#4698D5",
    "communication": "#4744F3",
    "copies": "#00985D",
    "loader": "#BA4600",
    "alloc": "#845642",
    "sync": "#CD5F9A",
    "copy_call": "#3F7D5F",
    "launch": "#997426",
    "runtime": "#908C6A",
    "dispatch": "#B88B00",
    "glue": "#867A44",
    "python": "#95418B",
    # Edges between work, on a critical path only.
    "latency": "#6C7F95",
    "turn": "#7D7D7D",
    "wait": "#A8627F",
    "queue": "#5E7480",
    # The evidence of a finding.
    "evidence": "#D12C7A",
}
NEUTRAL = "#8A8A8A"  # everything without a colour: the rest, unrecorded time
LINE_COLOUR = "rgba(128,128,128,.35)"  # lines, on any page
QUIET_BACKGROUND = "rgba(128,128,128,.12)"  # a quiet background, on any page
PREDICTED, UNCERTAIN = "#576466", "#7D92B2"  # the predicted step time: at least, and at most
MEASURED = "#AE49F2"  # beside a prediction
GOOD, BAD, UNDECIDED = "#0B7349", "#A65353", "#6B6B6B"  # badges with white text: confirmed, refuted, not tried yet
EVIDENCE, EVIDENCE_SHADING = "#D12C7A", "rgba(209,44,122,.22)"  # marks at evidence, and the shading behind it


def colour(key: str) -> str:
    """Return the colour of a part of the ledger."""
    return _BY_KEY.get(key, NEUTRAL)


_MAX_OPACITY = 0.45  # behind text: black or white text keeps a contrast of 4.5:1 on it


def cell_background(shade_frac: float) -> str:
    """Return the background of a table cell, a grey 0-1 as strong as the strongest; text is readable on any page."""
    return f"rgba(128,128,128,{_MAX_OPACITY * min(1.0, max(0.0, shade_frac)):.2f})"
