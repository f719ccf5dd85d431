"""Pale shades of palette colours, and readable text colours on them."""

from __future__ import annotations

from matplotlib.colors import to_hex, to_rgb

from gpulab.views.charts.drawing.style import BACKGROUND, TEXT_COLOUR

MIN_CONTRAST = 4.6  # WCAG AA requires 4.5:1 for small text


def pale_shade(colour: str, left: float) -> str:
    """Mix a colour with the background; `left` is the fraction of the colour."""
    strong, paper = to_rgb(colour), to_rgb(BACKGROUND)
    red, green, blue = (
        left * colour_part + (1 - left) * paper_part for colour_part, paper_part in zip(strong, paper, strict=True)
    )
    return to_hex((red, green, blue))


def text_colour_on(face: str) -> str:
    """Return dark or white, whichever has more contrast on this colour."""
    return max((TEXT_COLOUR, "#FFFFFF"), key=lambda ink: contrast(ink, face))


def readable_shade(face: str) -> str:
    """Return the colour, or its least pale shade on which small text is readable."""
    left = 1.0
    while contrast(text_colour_on(pale_shade(face, left)), pale_shade(face, left)) < MIN_CONTRAST and left > 0:
        left -= 0.04
    return face if left == 1.0 else pale_shade(face, left)


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours as defined by WCAG: 1 to 21."""
    light, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
