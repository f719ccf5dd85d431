"""Whether text in a page can be read: its contrast with what is painted behind it."""

from __future__ import annotations

import time
from typing import Any

LEAST_CONTRAST = 4.5  # WCAG 2, level AA
PATIENCE_S = 30.0  # for a theme to be loaded


def wait_until_legible(element: Any) -> None:
    """Wait until an element's text stands out as WCAG asks; fail if it does not in the end."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (found := contrast(element)) < LEAST_CONTRAST:
        assert time.monotonic() < deadline_s, f"contrast {found:.2f}: {element}"
        element.page.wait_for_timeout(100)


_PAINTED = """node => {
  const context = document.createElement('canvas').getContext('2d');
  const paint = (colour, alpha = 1) => {
    context.globalAlpha = alpha;
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const layers = [];
  let alpha = 1;
  for (let at = node; at; at = at.parentElement) {
    layers.unshift(getComputedStyle(at).backgroundColor);
    alpha *= getComputedStyle(at).opacity;
  }
  const behind = ['white', ...layers].map(colour => paint(colour)).at(-1);
  return [paint(getComputedStyle(node).color, alpha), behind];
}"""
_TEXTS = """([selector, painted]) => {
  const hasText = node => [...node.childNodes].some(each => each.nodeType === 3 && each.data.trim());
  const nodes = [...document.querySelectorAll(selector)].filter(node => node.checkVisibility() && hasText(node));
  const look = eval(painted);
  return nodes.map(node => [node.textContent.trim().slice(0, 60), ...look(node)]);
}"""


def contrast(element: Any) -> float:
    """The WCAG contrast of an element's text with all that is painted behind it, one on the other."""
    return _contrast(*element.evaluate(_PAINTED))


def contrasts(page: Any, selector: str) -> dict[str, float]:
    """The least contrast of each visible text of these elements, by the text."""
    least: dict[str, float] = {}
    for text, ink, paper in page.evaluate(_TEXTS, [selector, _PAINTED]):
        least[text] = min(least.get(text, 21.0), _contrast(ink, paper))
    return least


def _contrast(ink: list[int], paper: list[int]) -> float:
    light, dark = sorted((_luminance(ink), _luminance(paper)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: list[int]) -> float:
    parts = [part / 255 for part in colour[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
