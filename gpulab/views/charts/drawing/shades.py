"""Pale shades of palette colours, in light and dark themes, and readable text colours on them."""

from __future__ import annotations

from matplotlib.colors import to_hex, to_rgb

from gpulab.views.charts.drawing.style import BACKGROUND, DARK, TEXT_COLOUR

MIN_CONTRAST = 4.6  # WCAG AA requires 4.5:1 for small text
BLACK, WHITE = "#000000", "#FFFFFF"  # text on a colour that is the same in both themes
_dark_of_pale: dict[str, str] = {}  # of each pale shade that was drawn


def pale_shade(colour: str, left: float) -> str:
    """Mix a colour with the background, which is dark in dark themes; `left` is the fraction of the colour."""
    shade = _mix(colour, BACKGROUND, left)
    _dark_of_pale[shade] = _mix(colour, DARK[BACKGROUND], left)
    return shade


def dark_colours() -> dict[str, str]:
    """Return the colours that dark themes replace, each with its replacement, as matplotlib writes them."""
    return {light.lower(): dark for light, dark in {**_dark_of_pale, **DARK}.items()}


def _mix(colour: str, paper: str, left: float) -> str:
    pairs = zip(to_rgb(colour), to_rgb(paper), strict=True)
    red, green, blue = (left * colour_part + (1 - left) * paper_part for colour_part, paper_part in pairs)
    return to_hex((red, green, blue))


def text_colour_on(face: str) -> str:
    """Return the text colour on a pale shade; on any other colour black or white, whichever has more contrast."""
    if face in _dark_of_pale:
        return TEXT_COLOUR
    return max((BLACK, WHITE), key=lambda ink: contrast(ink, face))


def readable_shade(face: str) -> str:
    """Return the colour, or its least pale shade on which small text is readable."""
    left = 1.0
    while contrast(text_colour_on(shade := _mix(face, BACKGROUND, left)), shade) < MIN_CONTRAST and left > 0:
        left -= 0.04
    return face if left == 1.0 else _mix(face, BACKGROUND, left)


def contrast(first: str, second: str) -> float:
    """Return the contrast of two colours as defined by WCAG: 1 to 21."""
    light, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
