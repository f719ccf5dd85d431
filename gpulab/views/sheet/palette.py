"""One colour for each part of a step, the same in every bar, table and timeline.

Chosen from and around the Okabe-Ito set: work is blue and green, calling operators is one family of yellows and
browns, each other cause of idle time has a hue of its own. Every colour has at least 3:1 against a white page, against
the dark one of JupyterLab and against the paper of charts. Parts that stand beside each other in the ledger differ by
at least 12 (CIEDE2000), those with one between by 8, any two by 4: to who sees all colours, and to who lacks the cones
for red, green or blue. Thirteen colours cannot all be told apart at a glance, so each is also named where it is used.
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
    # Between pieces of work, on a critical path only.
    "latency": "#6C7F95",
    "turn": "#7D7D7D",
    "wait": "#A8627F",
    "queue": "#5E7480",
    # What a finding is about.
    "evidence": "#D12C7A",
}
NEUTRAL = "#8A8A8A"  # what has no name of its own: the rest, the unrecorded
RULE = "rgba(128,128,128,.35)"  # lines, on any page
WASH = "rgba(128,128,128,.12)"  # a quiet background, on any page
ACCENT, ACCENT_PALE = "#0072B2", "#4698D5"  # what is predicted: for sure, and perhaps
MEASURED = "#BA4600"
GOOD, BAD, OPEN = "#007A50", "#BA4600", "#6B6B6B"  # behind white letters: it holds, it does not, not tried yet
EVIDENCE, SHADE = "#D12C7A", "rgba(209,44,122,.22)"  # a mark where evidence is, and a wash behind what it marks


def colour(key: str) -> str:
    """The colour of a part of the ledger."""
    return _BY_KEY.get(key, NEUTRAL)
