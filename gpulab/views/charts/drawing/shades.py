"""Shades of the palette, and the ink that can be read on each."""

from __future__ import annotations

from matplotlib.colors import to_hex, to_rgb

from gpulab.views.charts.drawing.style import INK, PAPER

LEAST_CONTRAST = 4.6  # WCAG AA asks 4.5:1 of small text


def pale(colour: str, left: float) -> str:
    """The colour with this share of it left, the rest paper."""
    strong, paper = to_rgb(colour), to_rgb(PAPER)
    red, green, blue = (left * one + (1 - left) * other for one, other in zip(strong, paper, strict=True))
    return to_hex((red, green, blue))


def ink_on(face: str) -> str:
    """Dark or white, whichever has more contrast on it."""
    return max((INK, "#FFFFFF"), key=lambda ink: contrast(ink, face))


def readable(face: str) -> str:
    """The colour, or the least pale shade of it on which small text can be read."""
    left = 1.0
    while contrast(ink_on(pale(face, left)), pale(face, left)) < LEAST_CONTRAST and left > 0:
        left -= 0.04
    return face if left == 1.0 else pale(face, left)


def contrast(one: str, other: str) -> float:
    """Between two colours, as WCAG reckons it: 1 to 21."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
